"""A certificate of a run: the gates that its weights passed, as an unsigned in-toto Statement v1 of a test result v0.1.

`mpitrain help certificate` describes it for users.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

import mpitrain
from mpitrain.cluster import detect_cpu, instruction_flags
from mpitrain.config import load_run_config, render_yaml
from mpitrain.data import expand_paths
from mpitrain.durable_files import check_output, write_durably
from mpitrain.errors import DataError, LaunchError, UserError, writing
from mpitrain.json_text import read_json
from mpitrain.models import contents_sha256
from mpitrain.runs.reproduction.data_files import hash_file
from mpitrain.runs.reproduction.reproduce import RecordedRun
from mpitrain.train import RunFolder
from mpitrain.verify.gates import VERSION, Gate, Tried, named_gates, try_gates
from mpitrain.verify.invariance.runs import Runner
from mpitrain.version import __version__

Say = Callable[[str], None]
NAME = "certificate.json"
WEIGHTS, PACKAGE = "weights", "mpitrain"
_CHECKPOINT = "checkpoint of step "
PASSED, FAILED, INCOMPLETE = "PASSED", "FAILED", "NOT ALL TRIED"
_BUILT = (".pyc", ".so")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Digest(_Part):
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Resource(_Part):
    """A thing that a certificate is about or depends on (in-toto's ResourceDescriptor): its name and SHA-256."""

    name: str
    digest: _Digest
    annotations: dict[str, str] | None = None


class _Tests(_Part):
    result: Literal["PASSED", "FAILED"]
    configuration: list[Resource]
    passed_tests: list[str] = Field(alias="passedTests")
    failed_tests: list[str] = Field(alias="failedTests")


class Statement(_Part):
    """The content of a certificate file."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[list[Resource], Field(min_length=1)]
    predicate_type: Literal["https://in-toto.io/attestation/test-result/v0.1"] = Field(alias="predicateType")
    predicate: _Tests

    @model_validator(mode="after")
    def _names_each_thing_once(self) -> Self:
        subjects = [one.name for one in self.subject]
        names = [*subjects, *(one.name for one in self.predicate.configuration)]
        is_of_steps = len(subjects) == 1 and subjects[0].startswith(_CHECKPOINT)
        if len({*names}) < len(names) or not (is_of_steps or sorted(subjects) == ["model.safetensors", WEIGHTS]):
            raise ValueError("its subject is neither a model nor a checkpoint")
        return self

    @property
    def passed(self) -> bool:
        """Whether at least one gate passed and none failed."""
        tests = self.predicate
        return tests.result == "PASSED" and bool(tests.passed_tests) and not tests.failed_tests


@dataclass(frozen=True)
class CertificateRequest:
    """A run's folder, names of gates, the folder to train in, and the present paths of the data; (): as recorded."""

    run: Path
    names: tuple[str, ...]
    output: Path
    data: tuple[str, ...] = ()
    trust_code: bool = False

    @cached_property
    def gates(self) -> tuple[Gate, ...]:
        """The gates by their names. Raises UserError."""
        return named_gates(self.names)

    @property
    def num_steps(self) -> int | None:
        """The steps that each training of a gate takes; None for the whole run."""
        return self.gates[0].num_steps if self.gates else None

    @property
    def subject(self) -> str:
        """The name, in a certificate, of what the gates compare."""
        return WEIGHTS if self.num_steps is None else f"{_CHECKPOINT}{self.num_steps}"


def certify(request: CertificateRequest, say: Say) -> tuple[Path, str]:
    """Try the gates on a run that has ended, write its certificate, and return its path and the verdict.

    Raises UserError or DataError if the run cannot be trained again or if its files differ from its record, and
    OutputError if the certificate cannot be written.
    """
    run = _Run(request)
    path = request.run / (NAME if request.num_steps is None else f"certificate-steps-{request.num_steps}.json")
    with writing(path, "is the run folder writable?"):
        TemporaryFile(dir=request.run).close()  # checked before hours of training
        check_output(path, "https://in-toto.io/Statement/")
    model, configuration = run.model(), run.configuration(say)
    for number, file in enumerate(run.record["data"]):
        if file["sha256"] not in (None, configuration[f"data/{number}"].digest.sha256):
            raise DataError(f"{file['path']}: is not the file that the run read; restore that file")
    tried = run.try_gates(run.record["result"]["weights_sha256"], say)
    if run.model() != model or package_sha256() != configuration[PACKAGE].digest.sha256:
        raise DataError(f"{request.run} or {Path(mpitrain.__file__).parent}: has changed since the start; try again")
    subject = list(model.values()) if request.num_steps is None else [_resource(request.subject, tried.checkpoint)]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subject,
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": "FAILED" if tried.failed else "PASSED", "configuration": list(configuration.values()),
            "passedTests": list(tried.passed), "failedTests": list(tried.failed),
        },
    }  # fmt: skip
    text = Statement.model_validate(statement).model_dump_json(indent=1, by_alias=True, exclude_none=True)
    with writing(path, "is the run folder writable?"):
        write_durably(path, f"{text}\n".encode())
    return path, _verdict(request, tried)


def check(path: Path, request: CertificateRequest, say: Say) -> str:
    """Return the verdict on a certificate: whether the files are those that it names, and whether the gates pass.

    Prints a line for each difference; a difference of the package is not a failure. Raises as `certify`, and UserError
    for a file that is not a certificate. Without gates no code of the run is needed.
    """
    statement, run = _read(path), _Run(request)
    subjects = {one.name: one.digest.sha256 for one in statement.subject}
    there = subjects | {one.name: one.digest.sha256 for one in statement.predicate.configuration}
    found = (run.model() if WEIGHTS in subjects else {}) | run.configuration(say)
    here = {name: one.digest.sha256 for name, one in found.items()}
    of_steps = request.subject if request.num_steps else ""
    names = [name for name in {**there, **here} if name in here or not name.startswith(_CHECKPOINT)]
    is_equal = [_is_equal(name, there, here, say) for name in names if name != PACKAGE]
    _is_equal(PACKAGE, there, here, say)
    if not statement.passed:
        say(f"failed when it was written: {', '.join(statement.predicate.failed_tests) or 'no gate passed'}")
    if not statement.passed or not all(is_equal):
        return FAILED
    if not request.gates:
        return PASSED if WEIGHTS in subjects else INCOMPLETE  # checkpoints exist only after trainings
    if request.subject not in subjects:
        raise UserError(f"{path}: is about {', '.join(subjects)}; these gates are about the {request.subject}")
    tried = run.try_gates(there.get(WEIGHTS, ""), say)
    if of_steps and not _is_equal(of_steps, there, {of_steps: tried.checkpoint}, say):
        return FAILED
    return _verdict(request, tried)


def _is_equal(name: str, there: Mapping[str, str], here: Mapping[str, str], say: Say) -> bool:
    then, now = (digests.get(name, "nothing") for digests in (there, here))
    if then != now:
        say(f"differs: {name}: {then[:12]} in the certificate, {now[:12]} here")
    return then == now


def _verdict(request: CertificateRequest, tried: Tried) -> str:
    if tried.failed:
        return FAILED
    return PASSED if len(tried.passed) == len(request.gates) else INCOMPLETE


class _Run:
    """A run that has ended, read from its record, with the present paths of its data."""

    def __init__(self, request: CertificateRequest) -> None:
        self._request, self.folder = request, RunFolder(request.run)
        moved = expand_paths(request.data) if request.data else ()
        self._recorded = RecordedRun.read(request.run, request.trust_code, moved)
        self.record = self._recorded.record
        if re.fullmatch("[0-9a-f]{64}", self.record["result"]["weights_sha256"]) is None:
            raise UserError(f"{self.folder.record}: holds no SHA-256 of the weights; train the run again")

    def model(self) -> dict[str, Resource]:
        """Return the model file with its hash, and the weights with their recorded hash."""
        path = self.folder.own_model
        if not path.is_file():
            raise DataError(f"{path}: no such file, as in members of ensembles and old runs; train a single run")
        weights = _resource(WEIGHTS, self.record["result"]["weights_sha256"])
        return {path.name: _resource(path.name, hash_file(path)), WEIGHTS: weights}

    def configuration(self, say: Say) -> dict[str, Resource]:
        """Return what the weights depend on, by name: settings, record, data and package."""
        say("hashing the files")
        own = [_resource(path.name, hash_file(path)) for path in (self.folder.config, self.folder.record)]
        paths = [Path(file["path"]) for file in self.record["data"]]
        data = [_resource(f"data/{number}", hash_file(path)) for number, path in enumerate(paths)]
        package = _resource(PACKAGE, package_sha256(), version=__version__, gates=str(VERSION))
        return {one.name: one for one in (*own, *data, package)}

    def try_gates(self, weights: str, say: Say) -> Tried:
        """Print the expected time of all trainings, and train for the gates. Raises as `gates.try_gates`."""
        gates, record = self._request.gates, self.record
        num_ranks, all_steps = record["ranks"]["number"], record["result"]["steps"] or 0
        num_steps = self._request.num_steps or all_steps
        if not all_steps or num_steps >= all_steps + int(self._request.num_steps is None):
            raise UserError(f"--gates {gates[0].name}: the run has {all_steps} steps; name fewer, or leave @steps out")
        recorded = self._recorded
        if load_run_config(self.folder.config).config.as_recorded() != recorded.config:
            raise DataError(f"{self.folder.config}: not the settings in {self.folder.record.name}; restore it")
        _refuse_unfit(gates, recorded)
        if record.get("earlier"):
            say(f"note: {recorded.RESUMED}, and its gates then differ")
        trainings = {recipe for gate in gates for recipe in gate.recipes(num_ranks, num_steps)}
        count = len(trainings) + int(num_steps < all_steps)
        seconds_a_step = min(record["used"].get("wall_s", 0.0), 1e12) / max(1, all_steps - record["first_step"])
        hours = count * num_steps * seconds_a_step / 3600
        say(f"trainings: {count} of {num_steps} steps; {hours:.2g} hours in all if as fast as the run itself")
        output = self._request.output
        with writing(output, "choose another --output"):
            output.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=output.absolute(), prefix="gates-") as name:
                folder, settings = Path(name), Path(name) / "settings.yaml"
                write_durably(settings, render_yaml(recorded.settings_in(name)).encode())
                runner = Runner(folder, settings, ("--trust-code",) if self._request.trust_code else (), None, None)
                known = weights, contents_sha256(self.folder.own_model)
                return try_gates(gates, runner, num_ranks, num_steps, known, say)


def _refuse_unfit(gates: Sequence[Gate], run: RecordedRun) -> None:
    """Raise UserError if a gate does not apply to the run, or if the run cannot be trained as the gate requires."""
    for gate in gates:
        engine = run.record["decided"].get("training.engine")
        if gate.kind == "instruction-sets" and engine != "compiled":
            raise UserError(f"--gates {gate.name}: the run's engine is {engine}, which no instruction set changes")
        for value in gate.values if gate.kind == "instruction-sets" else ():
            instruction_flags(detect_cpu(), value)
        try:
            for value in gate.values if gate.kind == "ranks" else ():
                run.check_ranks(int(value))
        except LaunchError as error:
            raise UserError(f"--gates {gate.name}: {error}") from error


def package_sha256() -> str:
    """Return one hash of this package's files: of the lines of `sha256sum`, sorted by name, without built files."""
    folder = Path(mpitrain.__file__).parent
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in _BUILT)
    names = sorted(path.relative_to(folder).as_posix() for path in files)
    lines = (f"{hash_file(folder / name)}  {name}\n" for name in names if not name.startswith("cpp_reference/"))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _resource(name: str, digest: str, **annotations: str) -> Resource:
    return Resource(name=name, digest=_Digest(sha256=digest), annotations=annotations or None)


def _read(path: Path) -> Statement:
    try:
        statement = Statement.model_validate(read_json(path))
        named_gates([*statement.predicate.passed_tests, *statement.predicate.failed_tests])
        return statement
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError, UserError) as error:
        raise UserError(f"{path}: is not a certificate of mpitrain, or is damaged; get it again") from error

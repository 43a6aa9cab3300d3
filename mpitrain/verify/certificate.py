"""A certificate of a run: the gates that its weights passed, as an unsigned in-toto Statement v1 of a test result v0.1.

For users it is described by `mpitrain help certificate`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

import mpitrain
from mpitrain.config import render_yaml
from mpitrain.data import expand_paths
from mpitrain.durable_files import write_durably
from mpitrain.errors import DataError, UserError, writing
from mpitrain.json_text import read_json
from mpitrain.models import read_own_model
from mpitrain.runs.reproduction.data_files import hash_file
from mpitrain.runs.reproduction.reproduce import RecordedRun
from mpitrain.train import RunFolder, named_weights, weights_sha256
from mpitrain.verify.gates import VERSION, Gate, Tried, named_gates, try_gates
from mpitrain.verify.invariance.runs import Runner
from mpitrain.version import __version__

Say = Callable[[str], None]
NAME = "certificate.json"
WEIGHTS, PACKAGE = "weights", "mpitrain"
_BUILT = (".pyc", ".so")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Resource(_Part):
    """What a certificate is about, or depends on (in-toto's ResourceDescriptor): its name and SHA-256."""

    name: str
    digest: dict[Literal["sha256"], Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]
    annotations: dict[str, str] | None = None


class _Tests(_Part):
    result: Literal["PASSED", "FAILED"]
    configuration: list[Resource]
    passed_tests: list[str] = Field(alias="passedTests")
    failed_tests: list[str] = Field(alias="failedTests")


class Statement(_Part):
    """The certificate as it is written."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[Resource]
    predicate_type: Literal["https://in-toto.io/attestation/test-result/v0.1"] = Field(alias="predicateType")
    predicate: _Tests


@dataclass(frozen=True)
class CertificateRequest:
    """A run's folder, the names of gates, the folder to train in, and where its data are now; (): where they were."""

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
        """What the gates are about, as a certificate names it."""
        return WEIGHTS if self.num_steps is None else f"checkpoint of step {self.num_steps}"


def certify(request: CertificateRequest, say: Say) -> tuple[Path, bool]:
    """Try the gates on a run that has ended, write its certificate, and return its path and whether all passed.

    Raises UserError or DataError where the run cannot be trained again, or its files are not what its record says, and
    OutputError.
    """
    run = _Run(request)
    model, configuration = run.model(), run.configuration(say)
    known = run.record["result"]["weights_sha256"]
    if WEIGHTS not in model or model[WEIGHTS].digest["sha256"] != known:
        raise DataError(f"{run.folder.own_model}: is not the model that {run.folder.record.name} tells of; train again")
    for number, file in enumerate(run.record["data"]):
        if file["sha256"] not in (None, configuration[f"data/{number}"].digest["sha256"]):
            raise DataError(f"{file['path']}: is not the file that the run read; put that file back")
    tried = run.try_gates(known, say)
    subject = model.values() if request.num_steps is None else [_resource(request.subject, tried.sha256)]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": list(subject),
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": "FAILED" if tried.failed else "PASSED", "configuration": list(configuration.values()),
            "passedTests": list(tried.passed), "failedTests": list(tried.failed),
        },
    }  # fmt: skip
    path = request.run / (NAME if request.num_steps is None else f"certificate-steps-{request.num_steps}.json")
    text = Statement.model_validate(statement).model_dump_json(indent=1, by_alias=True, exclude_none=True)
    with writing(path, "is the run folder writable?"):
        write_durably(path, f"{text}\n".encode())
    return path, len(tried.passed) == len(request.gates)


def check(path: Path, request: CertificateRequest, say: Say) -> bool:
    """Tell whether the files beside a certificate are those that it names, and the gates that are asked for pass.

    What differs is said in a line each; of another package that is a note, no failure. Raises as `certify` does, and
    UserError for a file that is no certificate.
    """
    statement = _read(path)
    subjects = {one.name: one for one in statement.subject}
    run, there = _Run(request), subjects | {one.name: one for one in statement.predicate.configuration}
    here = (run.model() if WEIGHTS in subjects else {}) | run.configuration(say)
    differing = [
        name for name in {**there, **here}
        if (name in here or not name.startswith("checkpoint ")) and there.get(name) != here.get(name)
    ]  # fmt: skip
    for name in differing:
        say(f"differs: {name}: {_digits(there.get(name))} in the certificate, {_digits(here.get(name))} here")
    passed = statement.predicate.result == "PASSED" and set(differing) <= {PACKAGE}
    if request.gates and passed:
        if request.subject not in there:
            raise UserError(f"{path}: is about {', '.join(subjects)}; these gates are about the {request.subject}")
        wanted = there[request.subject].digest["sha256"]
        tried = run.try_gates(wanted, say)
        passed = len(tried.passed) == len(request.gates) and tried.sha256 == wanted
    return passed


class _Run:
    """A run that has ended, as its record tells, with its data where they are now."""

    def __init__(self, request: CertificateRequest) -> None:
        self._request = request
        self.folder = RunFolder(request.run)
        self._recorded = RecordedRun.read(request.run, request.trust_code)
        self.record = self._recorded.record
        self.record["data"] = self._data_now(expand_paths(request.data) if request.data else ())
        for number in (int(value) for gate in request.gates if gate.kind == "ranks" for value in gate.values):
            self._recorded.check_ranks(number)

    def _data_now(self, moved: Sequence[Path]) -> list[dict[str, Any]]:
        """Return the record of each file with its path now: as `moved`, where it was, or in the run's folder."""
        files = self.record["data"]
        num_files = len(files) - int(self._recorded.config.model.initial_weights is not None)
        if moved and len(moved) != num_files:
            raise UserError(
                f"data.data_path names {len(moved)} files, the run read {num_files}; name them all, in order"
            )
        paths = [*moved, *(Path(file["path"]) for file in files[len(moved) :])]
        copies = [self.folder.path / path.name for path in paths]
        found = [path if path.exists() or not copy.exists() else copy for path, copy in zip(paths, copies, strict=True)]
        return [{**file, "path": str(path.absolute())} for file, path in zip(files, found, strict=True)]

    def model(self) -> dict[str, Resource]:
        """Return the trained model's file and, where it can be read, its weights."""
        path = self.folder.own_model
        found = {path.name: _resource(path.name, hash_file(path))}
        with suppress(DataError):
            weights = named_weights(read_own_model(path, self._request.trust_code).model)
            found[WEIGHTS] = _resource(WEIGHTS, weights_sha256(weights))
        return found

    def configuration(self, say: Say) -> dict[str, Resource]:
        """Return what the weights depend on, by name: settings, record, data and package."""
        say("hashing the files")
        own = [_resource(path.name, hash_file(path)) for path in (self.folder.config, self.folder.record)]
        data = [_resource(f"data/{number}", hash_file(Path(file["path"])))
                for number, file in enumerate(self.record["data"])]  # fmt: skip
        package = _resource(PACKAGE, package_sha256(), version=__version__, gates=str(VERSION))
        return {one.name: one for one in (*own, *data, package)}

    def try_gates(self, known: str, say: Say) -> Tried:
        """Train for the gates, after a line on how long that takes. Raises as `gates.try_gates`."""
        gates, record, folder = self._request.gates, self.record, (self._request.output / "runs").absolute()
        num_ranks, all_steps = record["ranks"]["number"], int(record["result"]["steps"])
        num_steps = self._request.num_steps or all_steps
        if self._request.num_steps is not None and num_steps >= all_steps:
            raise UserError(f"--gates {gates[0].name}: the run has {all_steps} steps; name fewer, or leave @steps out")
        trainings = {recipe for gate in gates for recipe in gate.recipes(num_ranks, num_steps)}
        count = len(trainings) + int(num_steps < all_steps)
        hours = count * record["used"].get("wall_s", 0.0) * num_steps / all_steps / 3600
        say(f"trainings: {count} of {num_steps} steps; {hours:.2g} hours in all if as fast as the run itself")
        with writing(folder, "choose another --output"):
            folder.mkdir(parents=True, exist_ok=True)
            settings = folder / "settings.yaml"
            write_durably(settings, render_yaml(self._recorded.settings_in(str(folder))).encode())
        runner = Runner(folder, settings, ("--trust-code",) if self._request.trust_code else (), None)
        return try_gates(gates, runner, num_ranks, num_steps, known, say)


def package_sha256() -> str:
    """Return one hash of this package's files: of the lines of `sha256sum`, sorted by name, of all but built ones."""
    folder = Path(mpitrain.__file__).parent
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in _BUILT)
    names = sorted(path.relative_to(folder).as_posix() for path in files)
    lines = (f"{hash_file(folder / name)}  {name}\n" for name in names if not name.startswith("cpp_reference/"))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _resource(name: str, digest: str, **annotations: str) -> Resource:
    return Resource(name=name, digest={"sha256": digest}, annotations=annotations or None)


def _digits(resource: Resource | None) -> str:
    return "nothing" if resource is None else resource.digest["sha256"][:12]


def _read(path: Path) -> Statement:
    try:
        return Statement.model_validate(read_json(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is no certificate of mpitrain, or a damaged one; get it again") from error

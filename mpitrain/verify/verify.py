"""`mpitrain verify`: run both programs, compare all their numbers, and report the result."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mpitrain.config import RunConfig, load_run_config
from mpitrain.data import CICE_INPUTS, CICE_LATITUDE, CICE_LONGITUDE, CICE_OCEAN_MASK, CICE_TARGET
from mpitrain.durable_files import write_durably
from mpitrain.errors import DataError, writing
from mpitrain.native.build import Say, build_program
from mpitrain.native.program import json_line_of, run_under_mpi
from mpitrain.native.toolchain import find_toolchain
from mpitrain.synthetic.history import write_history_fields, write_synthetic_history
from mpitrain.train.folder.settings import load_settings_to_read
from mpitrain.verify.cases import TRACE_STEPS, Case, Run, all_cases, cases_of_user, named_cases, weights_for_cpp
from mpitrain.verify.compare import Comparison, compare_traces
from mpitrain.verify.machine_facts import SeenMachine, machines_of, merged
from mpitrain.verify.trace import read_trace


@dataclass(frozen=True)
class CaseResult:
    """The verdict on one case on one number of ranks, and the median time per step of both programs in microseconds.

    `machines`: the kinds of machines that the ranks of both programs reported.
    """

    case: Case
    num_ranks: int
    comparison: Comparison
    python_us_per_step: float
    cpp_us_per_step: float
    machines: tuple[SeenMachine, ...]


@dataclass(frozen=True)
class Verification:
    """The results of `mpitrain verify`."""

    cases: tuple[CaseResult, ...]
    wall_time_s: float

    @property
    def passed(self) -> bool:
        """True if all cases passed."""
        return all(result.comparison.passed for result in self.cases)

    @property
    def machines(self) -> tuple[SeenMachine, ...]:
        """Each kind of machine that any rank reported."""
        return merged(seen for result in self.cases for seen in result.machines)


@dataclass(frozen=True)
class VerifyRequest:
    """What to verify: the built-in cases, those of `case_names` only, or the user's own configuration.

    `overrides` change the named cases if there are any, otherwise they belong to the user's own configuration.
    """

    output: Path
    ranks: tuple[int, ...] = (1, 2, 3, 4)
    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    case_names: tuple[str, ...] = ()
    trust_code: bool = False


def verify(request: VerifyRequest, say: Say) -> Verification:
    """Build the C++ program if needed, run all cases on both sides, and compare.

    Raises MissingDependencyError if a tool is missing, and the errors of both programs.
    """
    started_s = time.monotonic()
    # Before anything is built, so that errors in the settings are reported at once.
    named = named_cases(request.case_names, request.overrides)
    own = None if named else _own_cases(request)
    bench = _Workbench(request.output, say)
    cases, history = own or (named or all_cases(), bench.write_history())
    results: list[CaseResult] = []
    for num_ranks in request.ranks:
        say(f"{num_ranks} rank{'s' if num_ranks > 1 else ''}: {len(cases)} cases")
        runs = {case.run.name: case.run for case in cases}
        bench.run_python(num_ranks, runs.values(), history, request.config_path)
        results += [bench.compare(case, num_ranks, history, request.config_path) for case in cases]
    return Verification(tuple(results), time.monotonic() - started_s)


def _own_cases(request: VerifyRequest) -> tuple[list[Case], Path] | None:
    """Return the cases of the user's own run and its file, or None if the built-in cases are requested."""
    if request.config_path is None and not request.overrides:
        return None
    config = load_settings_to_read(request.config_path, request.overrides, request.trust_code).config
    if config.data.data_path is None:
        raise DataError("verification of your own run needs your own file: set data.data_path")
    if isinstance(config.data.data_path, list):
        raise DataError("data.data_path names several files: the C++ program reads one; set data.data_path to one")
    history = Path(config.data.data_path)
    if not history.is_file():
        raise DataError(f"{history}: no such file; set data.data_path to an existing file")
    if history.suffix == ".npz":
        raise DataError(f"{history}: the C++ program reads NetCDF history files only; set data.data_path to one (.nc)")
    return cases_of_user(config.training, request.overrides), history


class _Workbench:
    """The folder, the tools and the programs of one verification."""

    def __init__(self, output: Path, say: Say) -> None:
        self.folder = output / "traces"
        self._say = say
        toolchain = find_toolchain()
        self._python, self._mpirun = toolchain.python, toolchain.mpirun
        self._program = build_program(toolchain, say)
        with writing(self.folder, "choose another --output"):
            self.folder.mkdir(parents=True, exist_ok=True)

    def write_history(self) -> Path:
        """Write the synthetic file that the built-in cases run on, and return its path."""
        history = self.folder / "verification_history.nc"
        write_verification_history(history)
        return history

    def run_python(
        self, num_ranks: int, runs: Iterable[Run], history: Path, config_path: Path | None
    ) -> None:  # fmt: skip
        """Train `runs` on Python's side in one launch."""
        jobs = [self._job(run, num_ranks, history, config_path) for run in runs]
        job_file = self.folder / f"jobs_np{num_ranks}.json"
        write_durably(job_file, json.dumps(jobs).encode())
        run_under_mpi(self._mpirun, num_ranks, [self._python, "-m", "mpitrain.verify.python_side", str(job_file)])

    def _job(self, run: Run, num_ranks: int, history: Path, config_path: Path | None) -> dict[str, object]:
        stem = self.stem(run, num_ranks)
        return {
            "config": str(config_path) if config_path else None,
            "settings": [*run.settings, f"data.data_path={history}"],
            "trace": f"{stem}.python.nc",
            "initial_weights": f"{stem}.weights.nc",
            "batch_order": f"{stem}.order.nc",
        }

    def stem(self, run: Run, num_ranks: int) -> str:
        """Return the beginning of the file names of `run` at `num_ranks`."""
        words = "".join(letter if letter.isalnum() else "_" for letter in run.name)
        return str(self.folder / f"{words}_np{num_ranks}")

    def run_cpp(self, case: Case, num_ranks: int, history: Path, config_path: Path | None) -> tuple[Path, float]:
        """Train `case` on the C++ side; return its trace and its median time per step in microseconds."""
        stem = self.stem(case.run, num_ranks)
        config = load_run_config(config_path, [*case.run.settings, f"data.data_path={history}"]).config
        trace = Path(f"{stem}.{case.engine}.nc")
        flags = cpp_flags(config, case, stem, history)
        output = run_under_mpi(self._mpirun, num_ranks, [str(self._program), *flags, "--trace", str(trace)])
        return trace, float(json.loads(json_line_of(output))["median_us_per_step"])

    def compare(self, case: Case, num_ranks: int, history: Path, config_path: Path | None) -> CaseResult:
        """Run the C++ side of `case` and compare it with Python's trace."""
        trace, cpp_us = self.run_cpp(case, num_ranks, history, config_path)
        python = read_trace(Path(f"{self.stem(case.run, num_ranks)}.python.nc"))
        cpp = read_trace(trace)
        comparison = compare_traces(cpp, python, case.claim)
        verdict = "same" if comparison.passed else f"DIFFERS at {comparison.first_difference}"
        self._say(f"  {case.name} ({case.claim}): {verdict}")
        python_us = float(np.asarray(python.attributes["median_us_per_step"]))
        machines = (*machines_of("Python", python), *machines_of("C++", cpp))
        return CaseResult(case, num_ranks, comparison, python_us, cpp_us, machines)


def cpp_flags(config: RunConfig, case: Case, stem: str, history: Path) -> list[str]:
    """Return the C++ program's flags for a configuration, with the files that Python's side wrote."""
    optimizer = config.training.optimizer
    weights = ["--initial-weights", weights_for_cpp(config.model.initial_weights) or f"{stem}.weights.nc"]
    if config.semantics == "standard" and config.model.initial_weights is None:
        # The C++ program draws the weights itself, so that the draws are compared too.
        weights = ["--seed", str(config.seed), "--hidden-size", str(config.model.hidden_size)]
    order = (
        ["--batch-order", f"{stem}.order.nc"]
        if config.semantics == "standard"
        else ["--epochs", str(config.training.epochs)]
    )
    return [
        *("--history", str(history), *weights, "--engine", case.engine),
        *("--semantics", config.semantics, "--precision", config.training.dtype),
        *("--pole", config.domain.pole or "north", "--clean-data", str(config.domain.clean_data).lower()),
        *("--hidden-activation", config.model.hidden_activation or "none"),
        *("--learning-rate", repr(optimizer.learning_rate), "--epsilon", repr(optimizer.epsilon)),
        *("--beta1", repr(optimizer.beta1), "--beta2", repr(optimizer.beta2)),
        *("--trace-steps", ",".join(map(str, TRACE_STEPS)), "--timing", "true", *order),
    ]


def write_verification_history(path: Path, seed: int = 20) -> None:
    """Write a small history file in which a rule with one wrong comparison would select other samples."""
    fields = _synthetic_fields(seed)
    aice, latitude, mask = fields[CICE_TARGET][0], fields[CICE_LATITUDE], fields[CICE_OCEAN_MASK]
    ice = np.argwhere((aice > 0) & (aice <= 1) & (np.abs(latitude) > 62))
    points = ice[:: max(1, len(ice) // 24)]
    # aice == 1 is a sample, aice == 0 is not; a latitude of exactly 40 or 60 is not beyond that limit.
    for j, i in points[0::4]:
        aice[j, i] = 1.0
    for j, i in points[1::4]:
        aice[j, i] = 0.0
    for number, (j, i) in enumerate(points[2::4]):
        latitude[j, i] = np.sign(latitude[j, i]) * (40.0 if number % 2 else 60.0)
    for j, i in points[3::4]:
        mask[j, i] = 0.0  # not ocean, although its fields hold values
    write_history_fields(path, fields)


def _synthetic_fields(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    import netCDF4

    with TemporaryDirectory() as folder:
        path = Path(folder) / "history.nc"
        write_synthetic_history(path, seed=seed, num_latitudes=60, num_longitudes=90)
        with netCDF4.Dataset(str(path)) as dataset:
            dataset.set_auto_maskandscale(False)
            return {
                name: np.array(dataset[name][:])
                for name in (CICE_LATITUDE, CICE_LONGITUDE, CICE_OCEAN_MASK, CICE_TARGET, *CICE_INPUTS)
            }

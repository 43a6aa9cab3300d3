"""`mpitrain bench step` and `scaling`: launch the Python and the C++ program in alternation and collect their times."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mpitrain.bench.measurement import rotated
from mpitrain.bench.step_cases import StepCase
from mpitrain.bench.step_report import ranks_text
from mpitrain.bench.step_results import StepResult, summarise, with_shares_of_peak
from mpitrain.cache import is_trusted_program
from mpitrain.cluster.launchers import read_claims, without_inherited
from mpitrain.errors import LaunchError, MissingDependencyError, MpitrainError, UserError
from mpitrain.native.build import Say, build_program, program_path
from mpitrain.native.program import json_line_of, run_command, run_under_mpi
from mpitrain.native.toolchain import find_mpirun, find_toolchain
from mpitrain.train.compiled.peak import measure_peak

Key = tuple[str, str, int, str]


@dataclass
class _Recorded:
    """Measurements of one case: step times of each round in microseconds, or an error message."""

    rounds_us: list[list[float]] = field(default_factory=list)
    error: str | None = None
    spent: list[Mapping[str, float]] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)


def measure_steps(
    cases: Sequence[StepCase], num_rounds: int, longest_s: float, build: bool, say: Say, launcher: str | None = None
) -> list[StepResult]:
    """Measure all cases in each of `num_rounds` rounds and return the results in the order of the cases.

    A case of the Python engines stops after about `longest_s` seconds, with fewer steps. If `build` is set, the C++
    program is built; otherwise its cases are skipped with a notice unless it is built already. `launcher`: a command
    that starts ranks on several nodes, instead of this machine's mpirun. Raises LaunchError if this process is one of
    several ranks, UserError for a launcher that is not found.
    """
    check_not_launched(os.environ)
    launch_command = launcher_command(launcher)
    program = _find_program(cases, build, say)
    if program is None:
        cases = [case for case in cases if case.engine.kind != "cpp"]
    recorded: dict[Key, _Recorded] = defaultdict(_Recorded)
    peak = 0.0
    # Ranks on other nodes can read the current folder, but not this node's temporary folder.
    with TemporaryDirectory(prefix="mpitrain_bench_", dir=Path.cwd() if launcher else None) as folder:
        for number in range(num_rounds):
            for launch in sorted({(case.num_ranks, case.num_nodes) for case in cases}):
                nodes = f" on {launch[1]} simulated nodes" if launch[1] > 1 else ""
                say(f"round {number + 1} of {num_rounds}: {ranks_text(launch[0])}{nodes}")
                here = rotated([case for case in cases if (case.num_ranks, case.num_nodes) == launch], number)
                threaded = [case for case in here if case.engine.kind == "threads"]
                ours = [case for case in here if case.engine.kind not in ("cpp", "threads")]
                _measure_python(launch_command, ours, longest_s, Path(folder), recorded)
                _measure_python(None, threaded, longest_s, Path(folder), recorded)
                _measure_cpp(launch_command, [case for case in here if case.engine.kind == "cpp"], program, recorded)
            peak = max(peak, _peak(cases[0].instruction_set if cases else "native"))
    found = ((case, recorded[case.key]) for case in cases)
    return with_shares_of_peak([summarise(case, r.rounds_us, r.error, r.spent, r.facts) for case, r in found], peak)


def launcher_command(launcher: str | None) -> str | list[str]:
    """Return the command of a launcher such as `srun --mpi=pmi2` as a list, before `-n RANKS COMMAND`; None: mpirun.

    Raises UserError if the program is not found.
    """
    if launcher is None:
        return find_mpirun()
    try:
        command = shlex.split(launcher)
    except ValueError as error:
        raise UserError(f"--launcher {launcher}: {error}; give a command such as 'srun --mpi=pmi2'") from error
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else "program"
        raise UserError(f"--launcher {launcher}: no {name} on the PATH; give a command such as 'srun --mpi=pmi2'")
    return command


def _peak(instruction_set: str) -> float:
    try:
        return measure_peak(instruction_set)
    except MissingDependencyError:  # without a compiler all engines except the compiled ones can be measured
        return 0.0


def variables_of_nodes(num_nodes: int) -> dict[str, str]:
    """Return the variables that make MPICH treat the ranks of one machine as several nodes, in blocks of ranks."""
    if num_nodes == 1:
        return {}
    return {"MPIR_CVAR_NUM_CLIQUES": str(num_nodes), "MPIR_CVAR_CLIQUES_BY_BLOCK": "1"}


def check_not_launched(environ: Mapping[str, str]) -> None:
    """Raise LaunchError if this process is one of several ranks, because it could not start others."""
    for claim in without_inherited(read_claims(environ), environ):
        if (claim.world_size or 1) > 1:
            raise LaunchError(
                f"{claim.source} started this process as one of {claim.world_size} ranks, but this command starts its "
                "own ranks: run it without mpirun or srun and give --ranks"
            )


def _find_program(cases: Sequence[StepCase], build: bool, say: Say) -> Path | None:
    if not any(case.engine.kind == "cpp" for case in cases):
        return None
    try:
        toolchain = find_toolchain()
    except MissingDependencyError as error:
        if build:
            raise
        say(f"note: the C++ engines are skipped: {error}")
        return None
    program = build_program(toolchain, say) if build else program_path(toolchain)
    if not is_trusted_program(program):
        say("note: the C++ engines are skipped: the program is not built; give --build")
        return None
    return program


def _measure_python(
    launcher: str | Sequence[str] | None, cases: Sequence[StepCase], longest_s: float, folder: Path,
    recorded: dict[Key, _Recorded],
) -> None:  # fmt: skip
    """Measure cases of one number of ranks in one launch; without a launcher in one process with threads."""
    if not cases:
        return
    job_file, results_file = folder / "job.json", folder / "results.json"
    num_ranks, num_nodes = cases[0].num_ranks, cases[0].num_nodes
    # None: a cluster's launcher chooses the number of nodes, which is then not checked.
    nodes = num_nodes if launcher is None or isinstance(launcher, str) else None
    job = {"longest_s": longest_s, "results": str(results_file), "nodes": nodes, "cases": list(map(asdict, cases))}
    job_file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "mpitrain.bench.step_job", str(job_file)]
    if launcher is None:
        run_command(["env", f"NPROC={num_ranks}", *command], 1)  # the number of threads
    else:
        run_under_mpi(launcher, num_ranks, command, variables=variables_of_nodes(num_nodes))
    for case, answer in zip(cases, json.loads(results_file.read_text()), strict=True):
        here = recorded[case.key]
        _record(here, answer.get("step_us"), answer.get("error"))
        here.facts = answer.get("facts", here.facts)
        here.spent += [answer["spent"]] if "spent" in answer else []


def _measure_cpp(
    launcher: str | Sequence[str], cases: Sequence[StepCase], program: Path | None, recorded: dict[Key, _Recorded]
) -> None:
    for case in cases:
        if program is None or recorded[case.key].error:
            continue
        if not case.network.is_chain:
            _record(recorded[case.key], None, "the C++ program supports only chains of dense layers")
            continue
        try:
            step_us = time_cpp_steps(launcher, program, case.num_ranks, cpp_flags_of(case))
            _record(recorded[case.key], step_us, None)
        except MpitrainError as error:
            _record(recorded[case.key], None, str(error))


def cpp_flags_of(case: StepCase) -> dict[str, object]:
    """Return the case as command-line options of the C++ program."""
    network = case.network
    return {
        "benchmark": case.num_steps,
        "warmup": case.num_warmup_steps,
        "engine": case.engine.cpp_engine,
        "reduction": case.engine.cpp_reduction,
        "network": "-".join(map(str, network.sizes)),
        "hidden-activation": network.hidden_activation,
        "output-activation": network.output_activation,
        "batch-size": case.global_batch_size,
        "samples": case.num_samples,
    }


def _record(recorded: _Recorded, step_us: list[float] | None, error: str | None) -> None:
    if step_us:
        recorded.rounds_us.append(step_us)
    recorded.error = recorded.error or error


def time_cpp_steps(
    launcher: str | Sequence[str], program: Path, num_ranks: int, flags: Mapping[str, object]
) -> list[float]:
    """Run the C++ benchmark on `num_ranks` ranks and return the root's time of each step in microseconds.

    `launcher`: see `run_under_mpi`. `flags`: the program's options, without dashes. Raises UserError or LaunchError
    with the program's message if its exit code indicates these, otherwise MpitrainError.
    """
    arguments = [argument for name, value in flags.items() for argument in (f"--{name}", str(value))]
    output = run_under_mpi(launcher, num_ranks, [str(program), *arguments])
    return [float(step_us) for step_us in json.loads(json_line_of(output))["step_us"]]

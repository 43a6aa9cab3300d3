"""`mpitrain bench step` and `scaling`: launch both programs in turn, round after round, and keep their times."""

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
from mpitrain.bench.step_report import ranks_words
from mpitrain.bench.step_results import StepResult, summarise, with_shares_of_peak
from mpitrain.cache import is_trusted_program
from mpitrain.cluster.launchers import read_claims, without_inherited
from mpitrain.errors import LaunchError, MissingDependencyError, MpitrainError, UserError
from mpitrain.native.build import Say, build_program, program_path
from mpitrain.native.program import json_line_of, run_under_mpi
from mpitrain.native.toolchain import find_mpirun, find_toolchain
from mpitrain.train.compiled.peak import measure_peak

Key = tuple[str, str, int, str]


@dataclass
class _Recorded:
    """What the rounds gave for one case: the times of each round's steps in microseconds, or what was in the way."""

    rounds_us: list[list[float]] = field(default_factory=list)
    error: str | None = None
    spent: list[Mapping[str, float]] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)


def measure_steps(
    cases: Sequence[StepCase], num_rounds: int, longest_s: float, build: bool, say: Say, launcher: str | None = None
) -> list[StepResult]:
    """Measure every case in each of `num_rounds` rounds, on its ranks, and return the results in the cases' order.

    A case of our engines ends after about `longest_s` seconds, with fewer steps. The C++ program is built if `build`
    says so; else its cases are left out, with a line, unless it is built already. `launcher`: words that start ranks on
    several nodes, in place of this machine's mpirun. Raises LaunchError inside a launch, UserError for such words.
    """
    check_not_launched(os.environ)
    words = launcher_words(launcher)
    program = _find_program(cases, build, say)
    if program is None:
        cases = [case for case in cases if case.engine.kind != "cpp"]
    recorded: dict[Key, _Recorded] = defaultdict(_Recorded)
    peak = 0.0
    # Ranks on other nodes see the current folder, and not this node's temporary ones.
    with TemporaryDirectory(prefix="mpitrain_bench_", dir=Path.cwd() if launcher else None) as folder:
        for number in range(num_rounds):
            for launch in sorted({(case.num_ranks, case.num_nodes) for case in cases}):
                nodes = f" on {launch[1]} nodes, as they believe" if launch[1] > 1 else ""
                say(f"round {number + 1} of {num_rounds}: {ranks_words(launch[0])}{nodes}")
                here = rotated([case for case in cases if (case.num_ranks, case.num_nodes) == launch], number)
                ours = [case for case in here if case.engine.kind != "cpp"]
                _measure_python(words, ours, longest_s, Path(folder), recorded)
                _measure_cpp(words, [case for case in here if case.engine.kind == "cpp"], program, recorded)
            peak = max(peak, _peak(cases[0].instruction_set if cases else "native"))
    found = ((case, recorded[case.key]) for case in cases)
    return with_shares_of_peak([summarise(case, r.rounds_us, r.error, r.spent, r.facts) for case, r in found], peak)


def launcher_words(launcher: str | None) -> str | list[str]:
    """Return the words of a launcher such as `srun --mpi=pmi2`, to which `-n RANKS COMMAND` is added; None: mpirun.

    Raises UserError where there is no such program.
    """
    if launcher is None:
        return find_mpirun()
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        raise UserError(f"--launcher {launcher}: {error}; give words such as 'srun --mpi=pmi2'") from error
    if not words or shutil.which(words[0]) is None:
        name = words[0] if words else "program"
        raise UserError(f"--launcher {launcher}: no {name} on the PATH; give words such as 'srun --mpi=pmi2'")
    return words


def _peak(instruction_set: str) -> float:
    try:
        return measure_peak(instruction_set)
    except MissingDependencyError:  # without a compiler all but the compiled step can be measured
        return 0.0


def variables_of_nodes(num_nodes: int) -> dict[str, str]:
    """Return the variables by which MPICH lets the ranks of one machine believe in several nodes, in blocks."""
    if num_nodes == 1:
        return {}
    return {"MPIR_CVAR_NUM_CLIQUES": str(num_nodes), "MPIR_CVAR_CLIQUES_BY_BLOCK": "1"}


def check_not_launched(environ: Mapping[str, str]) -> None:
    """Raise LaunchError where this process is one of several ranks: it could not start others."""
    for claim in without_inherited(read_claims(environ), environ):
        if (claim.world_size or 1) > 1:
            raise LaunchError(
                f"{claim.source} started this as one of {claim.world_size} ranks; this command starts its own: "
                "run it without mpirun or srun and give --ranks"
            )


def _find_program(cases: Sequence[StepCase], build: bool, say: Say) -> Path | None:
    if not any(case.engine.kind == "cpp" for case in cases):
        return None
    try:
        toolchain = find_toolchain()
    except MissingDependencyError as error:
        if build:
            raise
        say(f"note: the C++ engines are left out: {error}")
        return None
    program = build_program(toolchain, say) if build else program_path(toolchain)
    if not is_trusted_program(program):
        say("note: the C++ engines are left out: the program is not built; give --build")
        return None
    return program


def _measure_python(
    launcher: str | Sequence[str], cases: Sequence[StepCase], longest_s: float, folder: Path,
    recorded: dict[Key, _Recorded],
) -> None:  # fmt: skip
    if not cases:
        return
    job_file, results_file = folder / "job.json", folder / "results.json"
    num_ranks, num_nodes = cases[0].num_ranks, cases[0].num_nodes
    # Where a cluster's launcher starts them, on as many nodes as it likes.
    nodes = num_nodes if isinstance(launcher, str) else None
    job = {"longest_s": longest_s, "results": str(results_file), "nodes": nodes, "cases": list(map(asdict, cases))}
    job_file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "mpitrain.bench.step_job", str(job_file)]
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
            _record(recorded[case.key], None, "the C++ program has chains of dense layers only")
            continue
        try:
            step_us = time_cpp_steps(launcher, program, case.num_ranks, cpp_flags_of(case))
            _record(recorded[case.key], step_us, None)
        except MpitrainError as error:
            _record(recorded[case.key], None, str(error))


def cpp_flags_of(case: StepCase) -> dict[str, object]:
    """Return the same case as flags of the C++ program."""
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
    """Run the benchmark on `num_ranks` ranks and return the root's time of each step in microseconds.

    `launcher`: see `run_under_mpi`. `flags`: the program's, without their dashes. Raises UserError with the program's
    own message, else MpitrainError.
    """
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    output = run_under_mpi(launcher, num_ranks, [str(program), *words])
    return [float(step_us) for step_us in json.loads(json_line_of(output))["step_us"]]

"""Whole runs of the public command, each in its own folder, and the results to compare."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpitrain.config.yaml import quoted
from mpitrain.errors import MpitrainError, StoppedError
from mpitrain.json_text import read_json
from mpitrain.models import contents_sha256
from mpitrain.native.program import run_command
from mpitrain.native.toolchain import find_mpirun
from mpitrain.observe import read_metrics
from mpitrain.train import RUN, CheckpointStore, RunFolder
from mpitrain.verify.trace import Array

# From the clock: they differ between any two runs.
_CLOCKS = ("wall_time_s", "timing")


@dataclass(frozen=True)
class Recipe:
    """One way to obtain a result: number of ranks, launcher, and where to stop and on how many ranks to resume.

    `stop_at`: the step after which the run is stopped, and resumed on `resumed_on` ranks. `attempt` is
    the number of the repetition of a recipe. `settings` are for this recipe only.
    """

    num_ranks: int
    by_torchrun: bool = False
    stop_at: int | None = None
    resumed_on: int | None = None
    attempt: int = 0
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """Results of a run: the tensors of its newest checkpoint by name, the state in that checkpoint, and the metrics."""

    tensors: dict[str, Array]
    state: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    model: tuple[str, str] = ("", "")
    """Hashes of the trained weights and of the model file without the identity of its run; empty until it has ended."""

    @property
    def num_steps(self) -> int:
        """The number of steps taken."""
        return int(self.state["global_step"])


class Runner:
    """Runner of recipes with the settings of one configuration, through the public command; keeps their results.

    Raises the errors of the command.
    """

    def __init__(
        self, folder: Path, config_path: Path | None, settings: Sequence[str], max_steps: int | None,
        timeout_s: float | None = 1800.0,
    ) -> None:  # fmt: skip
        """Run in `folder`; `timeout_s` is the time limit of each training in seconds, None for no limit."""
        self._folder, self._mpirun, self._max_steps = folder, find_mpirun(), max_steps
        self._timeout_s = timeout_s
        self._arguments = [*([str(config_path)] if config_path else []), *settings]
        self._results: dict[tuple[Recipe, int | None], Result] = {}
        self._stopped: set[Path] = set()

    def result_of(self, recipe: Recipe, num_steps: int | None = None) -> Result:
        """Return the result of `recipe` after `num_steps` steps; None: at the end of the run."""
        key = (recipe, num_steps)
        if key not in self._results:
            self._results[key] = self._run(recipe, num_steps)
        return self._results[key]

    def _run(self, recipe: Recipe, num_steps: int | None) -> Result:
        folder = self._folder / f"{len(self._results):02d}"
        shutil.rmtree(folder, ignore_errors=True)
        if recipe.stop_at is None:
            self._train(recipe, folder, num_steps, ["--overwrite"])
        else:
            self._copy_stopped(replace(recipe, stop_at=None, resumed_on=None), recipe.stop_at, folder)
            on_others = replace(recipe, num_ranks=recipe.resumed_on or recipe.num_ranks)
            self._train(on_others, folder, num_steps, ["--resume"])
            if read_json(RunFolder(folder).record)["first_step"] != recipe.stop_at:
                raise MpitrainError(f"no training was resumed from step {recipe.stop_at}: there is no checkpoint of it")
        result = read_result(folder)
        shutil.rmtree(folder)
        return result

    def _copy_stopped(self, recipe: Recipe, num_steps: int, folder: Path) -> None:
        stopped = self._folder / f"stopped-{recipe.num_ranks}-at-{num_steps}-{recipe.attempt}"
        if stopped not in self._stopped:
            shutil.rmtree(stopped, ignore_errors=True)
            self._train(recipe, stopped, num_steps, ["--overwrite"])
            self._stopped.add(stopped)
        shutil.copytree(stopped, folder)

    def _train(self, recipe: Recipe, folder: Path, num_steps: int | None, flags: Sequence[str]) -> None:
        max_steps = self._max_steps if num_steps is None else num_steps
        own = [
            f"output.model_dir={quoted(str(folder))}", "output.progress=lines", "prediction.cice_history=null",
            "prediction.output_filename=null", f"training.max_steps={'null' if max_steps is None else max_steps}",
        ]  # fmt: skip
        command = [*self._launcher(recipe), "-m", "mpitrain", "train", *self._arguments, *recipe.settings, *own, *flags]
        run_command(command, recipe.num_ranks, self._timeout_s, accepted_codes=(0, StoppedError.exit_code))

    def _launcher(self, recipe: Recipe) -> list[str]:
        if recipe.by_torchrun:
            return [sys.executable, "-m", "torch.distributed.run", "--standalone",
                    f"--nproc-per-node={recipe.num_ranks}"]  # fmt: skip
        return [self._mpirun, "-np", str(recipe.num_ranks), sys.executable]


def read_result(folder: Path) -> Result:
    """Return the result of the run in `folder`. Raises CheckpointError or OutputError."""
    checkpoint, _ = CheckpointStore(folder / "checkpoints").load_latest()
    metrics = [
        {key: value for key, value in record.items() if key not in _CLOCKS}
        for record in read_metrics(folder / "metrics.jsonl")
    ]
    state = {key: value for key, value in checkpoint.state.items() if key != RUN}  # differs between launches
    run = RunFolder(folder)
    result, model = read_json(run.record).get("result"), ("", "")
    if result is not None and run.own_model.is_file():
        model = result["weights_sha256"], contents_sha256(run.own_model)
    return Result(dict(checkpoint.tensors), state, tuple(metrics), model)

"""The run and the checkpoint that `--resume` and `--resume PATH` name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitrain.comm import Ranks
from mpitrain.config import load_run_config
from mpitrain.errors import CheckpointError, ConfigError
from mpitrain.train import RUN, Checkpoint, CheckpointStore, RunFolder
from mpitrain.train.checkpoint.format import COMMIT
from mpitrain.train.checkpoint.manifest import check_whole
from mpitrain.train.checkpoint.store import load_checkpoint
from mpitrain.train.folder.known_code import distrust_reason


@dataclass(frozen=True)
class ResumedRun:
    """The folder of the run to resume, and the checkpoint to continue from; None: the newest complete one."""

    folder: RunFolder
    checkpoint: Path | None = None


def find_resumed_run(path: Path | None, overrides: Sequence[str]) -> ResumedRun:
    """Return the run at `path`, a run folder or a checkpoint; None: the run in the folder that the overrides name.

    Raises ConfigError if there is no run or checkpoint.
    """
    if path is None:
        folder = RunFolder(Path(load_run_config(None, overrides).config.output.model_dir))
        if not folder.config.is_file():
            raise ConfigError(
                f"--resume: {folder.path} holds no run; name its folder with --resume FOLDER or output.model_dir=FOLDER"
            )
        return ResumedRun(folder)
    if RunFolder(path).config.is_file():
        return ResumedRun(RunFolder(path))
    checkpoint = (path if path.is_dir() else path.parent).resolve()  # or a file in one, or the link to the newest
    folder = RunFolder(checkpoint.parent.parent)
    if not path.exists() or checkpoint.parent != folder.checkpoints or not folder.config.is_file():
        raise ConfigError(f"--resume {path}: {_reason_and_advice(path)}")
    if checkpoint.name.startswith("best-"):
        raise ConfigError(
            f"--resume {path}: only the best weights, without the state of the training; give --resume {folder.path}"
        )
    return ResumedRun(RunFolder(_relative(folder.path)), _relative(checkpoint))


def _reason_and_advice(path: Path) -> str:
    """Return why a path cannot be resumed, and what to do."""
    if path.suffix in (".pt", ".pth", ".ckpt", ".h5"):
        return (
            "is a file; checkpoints of mpitrain are folders, and those of other programs cannot be resumed; give "
            "--resume FOLDER of a run, or start from the weights of a model.pt with model.initial_weights=FILE"
        )
    return "neither a run folder nor one of its checkpoints; give one of them"


def load_resumed(resumed: ResumedRun, target: RunFolder, ranks: Ranks) -> Checkpoint | None:
    """Return the checkpoint that the run continues from in `target`, and print its path; None if there is none yet.

    Root only. Raises CheckpointError if it is damaged, or if `target` holds newer ones, which would be lost.
    """
    store = CheckpointStore(resumed.folder.checkpoints)
    if resumed.checkpoint is None and not store.holds_any() and not resumed.folder.stored_model.exists():
        ranks.note(f"--resume: {resumed.folder.path} has no checkpoint yet; the run starts from scratch")
        return None
    if resumed.checkpoint is None:
        checkpoint, notices = store.load_latest()
    else:
        checkpoint, notices = load_checkpoint(resumed.checkpoint), []
        newest = max(resumed.folder.checkpoints.glob(f"step-*/{COMMIT}"), key=lambda it: (len(it.parent.name), it))
        if target.path.resolve() == resumed.folder.path.resolve() and newest.parent.name != resumed.checkpoint.name:
            raise CheckpointError(
                f"--resume {resumed.checkpoint}: not the newest checkpoint, which is {newest.parent.name}; to continue "
                "from it, give the resumed run another folder with --output FOLDER"
            )
    check_whole(checkpoint.path, checkpoint.state, checkpoint.settings)
    note = resumed.folder.note_of_another_run(checkpoint.path, checkpoint.state.get(RUN))
    doubt = distrust_reason(resumed.folder.config)
    if doubt and resumed.folder.config.name not in doubt:  # which a resume with --trust-code rewrites
        notices = [*notices, f"{resumed.folder.config}: {doubt}; the run continues with the present code"]
    ranks.note(*(notices if note is None else (*notices, note)))
    ranks.say(f"resuming from {checkpoint.path}")
    return checkpoint


def _relative(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path

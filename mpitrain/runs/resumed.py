"""Which run and which checkpoint `--resume` and `--resume PATH` mean."""

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
from mpitrain.train.folder.known_code import doubt_about


@dataclass(frozen=True)
class ResumedRun:
    """The folder of the run that is continued, and the checkpoint to go on from; None: the newest that is whole."""

    folder: RunFolder
    checkpoint: Path | None = None


def find_resumed_run(path: Path | None, overrides: Sequence[str]) -> ResumedRun:
    """Return what is resumed: the run folder that the overrides name, or the folder or checkpoint at `path`.

    Raises ConfigError where there is neither.
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
    checkpoint = (path if path.is_dir() else path.parent).resolve()  # a file of a checkpoint, or the link to the newest
    folder = RunFolder(checkpoint.parent.parent)
    if not path.exists() or checkpoint.parent != folder.checkpoints or not folder.config.is_file():
        raise ConfigError(f"--resume {path}: {_what_else(path)}")
    if checkpoint.name.startswith("best-"):
        raise ConfigError(
            f"--resume {path}: the best weights, without what training needs to go on; give --resume {folder.path}"
        )
    return ResumedRun(RunFolder(_relative(folder.path)), _relative(checkpoint))


def _what_else(path: Path) -> str:
    """Return why a path cannot be resumed, and what to do."""
    if path.suffix in (".pt", ".pth", ".ckpt", ".h5"):
        return (
            "a file is no run of mpitrain's, whose checkpoints are folders, and no other trainer's can go on; give "
            "--resume FOLDER of a run, or begin with the weights of a model.pt by model.initial_weights=FILE"
        )
    return "neither a run folder nor one of its checkpoints; give one of them"


def load_resumed(resumed: ResumedRun, target: RunFolder, ranks: Ranks) -> Checkpoint | None:
    """Return the checkpoint to go on from in `target`, and say which; None before the first. For the root.

    Raises CheckpointError for one that is damaged, and where `target` holds newer ones, which would be lost.
    """
    store = CheckpointStore(resumed.folder.checkpoints)
    if resumed.checkpoint is None and not store.holds_any() and not resumed.folder.stored_model.exists():
        ranks.note(f"--resume: {resumed.folder.path} has no checkpoint yet; the run is begun anew")
        return None
    if resumed.checkpoint is None:
        checkpoint, notices = store.load_latest()
    else:
        checkpoint, notices = load_checkpoint(resumed.checkpoint), []
        newest = max(resumed.folder.checkpoints.glob(f"step-*/{COMMIT}"), key=lambda it: (len(it.parent.name), it))
        if target.path.resolve() == resumed.folder.path.resolve() and newest.parent.name != resumed.checkpoint.name:
            raise CheckpointError(
                f"--resume {resumed.checkpoint}: not the newest, which is {newest.parent.name}; to go on from it, give "
                "the continued run a folder of its own with --output FOLDER"
            )
    check_whole(checkpoint.path, checkpoint.state, checkpoint.settings)
    note = resumed.folder.note_of_another_run(checkpoint.path, checkpoint.state.get(RUN))
    doubt = doubt_about(resumed.folder.config)
    if doubt and resumed.folder.config.name not in doubt:  # which a resume with --trust-code writes again
        notices = [*notices, f"{resumed.folder.config}: {doubt}; the run goes on with its code as it is now"]
    ranks.note(*(notices if note is None else (*notices, note)))
    ranks.say(f"resuming from {checkpoint.path}")
    return checkpoint


def _relative(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path

"""The data files of a run: those that its settings name, otherwise a synthetic history in its folder."""

from __future__ import annotations

from pathlib import Path

from mpitrain.comm import Ranks
from mpitrain.config import DataSection
from mpitrain.data.formats.open import load_libraries_for
from mpitrain.errors import writing
from mpitrain.synthetic.history import check_histories, write_synthetic_history
from mpitrain.train import RunFolder
from mpitrain.train.folder.made_here import MadeHere

# The synthetic history has somewhat more at each pole and time.
SAMPLES_A_TIME = 6000


def find_or_write_data(
    ranks: Ranks, data: DataSection, seed: int, folder: RunFolder, made: MadeHere, is_resumed: bool,
    overwrite: bool,
) -> list[str]:  # fmt: skip
    """Return the files and patterns of a run; if there are none, the root writes a synthetic history. Collective.

    `is_resumed`: use the existing history of the run if there is one; `overwrite`: replace an existing file without a
    check. Raises OutputError on all ranks if the history cannot be written.
    """
    if not ranks.is_root:  # meanwhile the root may write the files
        load_libraries_for(folder.data_files(data.entries))
    return ranks.on_root(lambda: _found_or_made(data, seed, folder, made, is_resumed, overwrite))


def write_stand_in(path: Path, num_samples: int | None, seed: int) -> None:
    """Write a history of at least `num_samples` samples, None: of one time. Raises OutputError."""
    write_synthetic_history(path, seed=seed, num_times=-(-(num_samples or 1) // SAMPLES_A_TIME))


def check_stand_in(path: Path, overwrite: bool) -> None:
    """Raise OutputError if a file of another program is in the place of a run's synthetic history."""
    if not overwrite:  # otherwise the folder is a run's own; earlier versions put the mark elsewhere
        check_histories([path], overwrite)


def _found_or_made(
    data: DataSection, seed: int, folder: RunFolder, made: MadeHere, is_resumed: bool, overwrite: bool
) -> list[str]:  # fmt: skip
    if data.entries:
        return data.entries
    if not (is_resumed and folder.synthetic_history.exists()):
        check_stand_in(folder.synthetic_history, overwrite)
        with writing(folder.path, "choose another output.model_dir"):
            made.make_folder(folder.logs)
        folder.create()
        made.write(folder.synthetic_history, lambda path: write_stand_in(path, data.num_samples, seed))
    return [str(folder.synthetic_history)]

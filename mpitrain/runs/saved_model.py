"""What a finished run leaves: its model, also for torch and the C++ program where torch is installed, and its page."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from mpitrain.cluster import detect_usable_core_count
from mpitrain.comm import Ranks
from mpitrain.comm.arrays import has_torch
from mpitrain.models import DenseModel
from mpitrain.models.files.own_file import write_own_model
from mpitrain.models.files.torch_files import TorchFilesWriter, torch_files_writer, write_torch_files
from mpitrain.observe import Findings, RunSummary
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.train import RunFolder, remember_code_of, trusts_code_of


def save_trained(folder: RunFolder, prepared: PreparedRun) -> None:
    """Write the run's own file of the trained model. For the root. Raises OutputError.

    Where the run's settings are known to be the user's, it is noted as well that the code it names is.
    """
    if write_own_model(prepared.model, folder.own_model, prepared.description) and trusts_code_of(folder.config, False):
        remember_code_of(prepared.config.code_names.items(), [folder.own_model])


def write_page_and_model(
    ranks: Ranks, prepared: PreparedRun, files: Sequence[str], folder: RunFolder, summary: RunSummary, found: Findings
) -> list[str]:  # fmt: skip
    """Write `report.html` on the root, and the `model.pt` of a `DenseModel` meanwhile.

    That is written by a process of its own, which loads torch: of the next rank on the root's node, else of the root.
    Collective. Returns what the user should know, on every rank. Raises OutputError on all ranks.
    """

    def page() -> list[str]:
        return write_page(folder.path, summary, found, prepared, files)

    def save() -> list[str]:
        with _begin_to_save(folder) as writer:
            return _end_saving(writer, folder, prepared)

    if not isinstance(prepared.model, DenseModel):
        return ranks.on_root(lambda: [*save(), *page()])
    gc.disable()  # what the imports make stays to the end: the collector would take an eighth of their time
    try:
        if ranks.on_root(lambda: ranks.local_world_size == 1):  # nodes differ in their numbers of ranks
            return ranks.on_root(lambda: _write_both(folder, prepared, page))
        of_page, of_model = ranks.on_root_and_neighbour(page, save)
    finally:
        gc.enable()
    return of_model + of_page


def write_page(
    run_folder: Path, summary: RunSummary, found: Findings, prepared: PreparedRun, files: Sequence[str]
) -> list[str]:  # fmt: skip
    """Write `report.html`, with a map of the errors where the data has a grid; return what the user should know.

    For the root, which alone loads what draws. Raises OutputError.
    """
    from mpitrain.inference.page.findings import with_pictures
    from mpitrain.inference.predictor import open_data
    from mpitrain.observe import describe_settings
    from mpitrain.observe.report import notes_of_page, write_report

    names = prepared.dataset.summary
    words = describe_settings(prepared.config, names.input_names, names.target_names, asdict(summary))
    every = [*files, *prepared.config.data.validation_entries]  # samples are counted over all of them
    source, found = open_data(prepared.config, every), replace(found, settings=words)
    num_samples = names.num_usable_samples
    if source is not None:  # else it has been moved since: the page does without
        units = prepared.units.get(source.target_names[0], "")
        found = with_pictures(found, prepared.model, source, units, num_samples)
    return notes_of_page(write_report(run_folder, summary, found))


def _write_both(folder: RunFolder, prepared: PreparedRun, page: Callable[[], list[str]]) -> list[str]:
    """Write the page, and `model.pt` meanwhile where another core is free to load torch."""
    with _begin_to_save(folder) if detect_usable_core_count() > 1 else nullcontext() as writer:
        notices = page()
        return [*_end_saving(writer, folder, prepared), *notices]


def _begin_to_save(folder: RunFolder) -> AbstractContextManager[TorchFilesWriter | None]:
    """Start the process that writes `model.pt`; none where this one has torch, or no model to hand over."""
    can_help = "torch" not in sys.modules and folder.own_model.is_file()
    return torch_files_writer(folder.own_model, folder.model) if can_help else nullcontext()


def _end_saving(writer: TorchFilesWriter | None, folder: RunFolder, prepared: PreparedRun) -> list[str]:
    """Wait until `model.pt` is written; write it here where the process could not, which says why."""
    return [] if writer is not None and writer.has_written() else _save_for_torch(folder, prepared)


def _save_for_torch(folder: RunFolder, prepared: PreparedRun) -> list[str]:
    """Write `model.pt` and its normalisation; return what the user should know. For one rank. Raises OutputError."""
    if isinstance(prepared.model, DenseModel) and not has_torch():
        return [
            f"{folder.model}: not written, for torch is not installed; {folder.own_model} has the model, for predict "
            "and export"
        ]
    write_torch_files(prepared.model, folder.model, prepared.description)
    return []

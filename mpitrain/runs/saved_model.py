"""Output of a finished run: `model.safetensors`, `report.html`, and, if torch is installed, `model.pt`."""

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
    """Write `model.safetensors`. Root only. Raises OutputError.

    If the run's settings are noted as this user's own, the same is noted of the model, so that its code is trusted.
    """
    if write_own_model(prepared.model, folder.own_model, prepared.description) and trusts_code_of(folder.config, False):
        remember_code_of(prepared.config.code_names.items(), [folder.own_model])


def write_page_and_model(
    ranks: Ranks, prepared: PreparedRun, files: Sequence[str], folder: RunFolder, summary: RunSummary, found: Findings
) -> list[str]:  # fmt: skip
    """Write `report.html` and `model.pt`; return notices for the user on every rank. Collective.

    The root writes `report.html`. At the same time a subprocess that loads torch writes the `model.pt` of a
    `DenseModel`; it is started by the next rank on the root's node, or by the root if there is none. Raises OutputError
    on all ranks.
    """

    def page() -> list[str]:
        return write_page(folder.path, summary, found, prepared, files)

    def save() -> list[str]:
        with _begin_to_save(folder) as writer:
            return _end_saving(writer, folder, prepared)

    if not isinstance(prepared.model, DenseModel):
        return ranks.on_root(lambda: [*save(), *page()])
    gc.disable()  # objects of the imports live to the end: collections would take an eighth of the time
    try:
        if ranks.on_root(lambda: ranks.local_world_size == 1):  # nodes may differ in their numbers of ranks
            return ranks.on_root(lambda: _write_both(folder, prepared, page))
        of_page, of_model = ranks.on_root_and_neighbour(page, save)
    finally:
        gc.enable()
    return of_model + of_page


def write_page(
    run_folder: Path, summary: RunSummary, found: Findings, prepared: PreparedRun, files: Sequence[str]
) -> list[str]:  # fmt: skip
    """Write `report.html`, with a map of the errors if the data has a grid; return notices for the user.

    Root only: no other rank imports the plotting library. Raises OutputError.
    """
    from mpitrain.inference.page.findings import with_pictures
    from mpitrain.inference.predictor import open_data
    from mpitrain.observe import describe_settings
    from mpitrain.observe.report import notes_of_page, write_report

    names = prepared.dataset.summary
    description = describe_settings(prepared.config, names.input_names, names.target_names, asdict(summary))
    every = [*files, *prepared.config.data.validation_entries]  # samples are counted over all of them
    source, found = open_data(prepared.config, every), replace(found, settings=description)
    num_samples = names.num_usable_samples
    if source is not None:  # None if the files were moved: the page then has no map
        units = prepared.units.get(source.target_names[0], "")
        found = with_pictures(found, prepared.model, source, units, num_samples)
    return notes_of_page(write_report(run_folder, summary, found))


def _write_both(folder: RunFolder, prepared: PreparedRun, page: Callable[[], list[str]]) -> list[str]:
    """Write the page, and at the same time `model.pt` if a second core is available to load torch."""
    with _begin_to_save(folder) if detect_usable_core_count() > 1 else nullcontext() as writer:
        notices = page()
        return [*_end_saving(writer, folder, prepared), *notices]


def _begin_to_save(folder: RunFolder) -> AbstractContextManager[TorchFilesWriter | None]:
    """Start the subprocess that writes `model.pt`; None if torch is loaded here or there is no `model.safetensors`."""
    can_help = "torch" not in sys.modules and folder.own_model.is_file()
    return torch_files_writer(folder.own_model, folder.model) if can_help else nullcontext()


def _end_saving(writer: TorchFilesWriter | None, folder: RunFolder, prepared: PreparedRun) -> list[str]:
    """Wait until `model.pt` is written; if the subprocess failed, write it here, which reports the reason."""
    return [] if writer is not None and writer.has_written() else _save_for_torch(folder, prepared)


def _save_for_torch(folder: RunFolder, prepared: PreparedRun) -> list[str]:
    """Write `model.pt` and its normalisation; return notices for the user. Root only. Raises OutputError."""
    if isinstance(prepared.model, DenseModel) and not has_torch():
        return [f"{folder.model}: not written, torch is not installed; predict and export read {folder.own_model}"]
    write_torch_files(prepared.model, folder.model, prepared.description)
    return []

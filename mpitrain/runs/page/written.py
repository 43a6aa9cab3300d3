"""Write the page of a run. Only the rank that writes it loads this module, with all that draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mpitrain.inference.page.findings import with_maps
from mpitrain.inference.predictor import open_data
from mpitrain.observe import Findings, RunSummary, describe_settings
from mpitrain.observe.report import notes_of_page, write_report
from mpitrain.runs.prepared_run import PreparedRun


def write_page(
    run_folder: Path, summary: RunSummary, found: Findings, prepared: PreparedRun, files: Sequence[str]
) -> list[str]:  # fmt: skip
    """Write `report.html`, with a map of the errors where the data has a grid; return what the user should know.

    For the root. Raises OutputError.
    """
    names = prepared.dataset.summary
    words = describe_settings(prepared.config, names.input_names, names.target_names, asdict(summary))
    source, found = open_data(prepared.config, files), replace(found, settings=words)
    num_samples = names.num_usable_samples
    if source is not None:  # else it has been moved since: the page does without
        units = prepared.units.get(source.target_names[0], "")
        found = with_maps(found, prepared.model, source, units, num_samples)
    return notes_of_page(write_report(run_folder, summary, found))

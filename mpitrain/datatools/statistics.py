"""Statistics of a data set with their provenance, as a run stores them and `mpitrain data stats` prints them.

C  chunks      F  inputs      O  targets
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpitrain.comm import Ranks
from mpitrain.config import RunConfig
from mpitrain.data import DataSummary, SampleSource, open_source_on_root, selection_of
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.moments import Moments
from mpitrain.data.streaming.first_pass import make_first_pass
from mpitrain.durable_files import write_durably
from mpitrain.errors import writing
from mpitrain.text_table import aligned
from mpitrain.version import __version__

_HEADINGS = ("variable", "units", "mean", "standard deviation", "minimum", "maximum", "missing")
_FIGURES = ("mean", "std", "minimum", "maximum")
_SETTINGS = ("data", "domain", "variables")


def measure(config: RunConfig, ranks: Ranks) -> dict[str, Any]:
    """Return the record of the files of `data.data_path`; each chunk is read once, by one rank. Collective.

    Statistics are over the training samples that the settings select, in float64, merged in an order that depends only
    on the chunks: the record is the same for any number of ranks. Raises the errors of `make_first_pass` on all ranks.
    """
    source = open_source_on_root(replace(selection_of(config), dtype="float64"), ranks)
    ranks.note(*source.notices)
    first_pass = make_first_pass(source, ranks, ranks.on_root(lambda: plan_split(config.split_data, source)))
    counts = {name: int(found.sum()) for name, found in vars(first_pass.counts).items()}
    return statistics_record(
        provenance_of(config), source, counts, first_pass.training, first_pass.num_missing.tolist()
    )


def record_of_run(
    settings: Mapping[str, Any], source: SampleSource, summary: DataSummary, moments: Moments
) -> dict[str, Any]:
    """Return the record of a run's data. Not collective.

    `settings` come from `provenance_of`; `moments` are those of the training samples.
    """
    valid = summary.num_usable_samples
    counts = {"kept": valid + summary.num_dropped_samples, "valid": valid, "training": summary.num_training_samples}
    counts["validation"] = summary.num_validation_samples or 0
    return statistics_record(settings, source, counts, moments, summary.num_missing)


def statistics_record(
    settings: Mapping[str, Any], source: SampleSource, counts: Mapping[str, int], moments: Moments,
    num_missing: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    """Return statistics of all inputs and targets, numbers of samples, and provenance, as plain numbers and strings.

    `sha256` is the hash of all other entries, see `digest_of`.
    """
    names = (*source.input_names, *source.target_names)
    variables = [
        {
            "name": name,
            "role": "input" if column < len(source.input_names) else "target",
            "units": source.units.get(name, ""),
            **{key: float(getattr(moments, key)[column]) if moments.count[column] > 0 else None for key in _FIGURES},
            "weight": float(moments.count[column]),
            "missing": int(num_missing[column]) if num_missing else None,
        }
        for column, name in enumerate(names)
    ]
    files = (one for file in source.files for one in (file, *file.beside))
    record: dict[str, Any] = {
        "samples": dict(counts),
        "weighted_by": "area" if source.layout.is_area_weighted else "count",
        "variables": variables,
        "provenance": {
            "files": [{"path": str(one.path), "size_bytes": one.size_bytes, "mtime_ns": one.mtime_ns} for one in files],
            "settings": {**settings, "training.dtype": source.selection.dtype},
            "mpitrain": __version__,
        },
    }
    return {**record, "sha256": digest_of(record)}


def provenance_of(config: RunConfig) -> dict[str, Any]:
    """Return the settings that determine the statistics of the data, as plain values."""
    sections = {name: getattr(config, name).model_dump(mode="json") for name in _SETTINGS}
    return {"seed": config.seed, "training.dtype": config.training.dtype, **sections}


def digest_of(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record as JSON with sorted keys and no spaces, without the entry `sha256`."""
    content = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """Write a record as JSON, atomically. Raises OutputError."""
    with writing(path, "free some space, or give another folder"):
        write_durably(path, (json.dumps(record, indent=1) + "\n").encode())


def render_table(record: Mapping[str, Any]) -> str:
    """Return a record as text: a line for each variable, then the numbers of samples."""
    samples = record["samples"]
    weighting = "weighted by area" if record["weighted_by"] == "area" else "each sample with weight 1"
    return "\n".join(
        [
            *aligned([_HEADINGS, *map(_cells, record["variables"])]),
            "",
            f"over {samples['training']} training samples, {weighting}; "
            f"{samples['valid'] - samples['training']} held out, "
            f"{samples['kept'] - samples['valid']} dropped because of missing values",
            f"{len(record['provenance']['files'])} files, SHA-256 {record['sha256'][:12]}",
        ]
    )


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    figures = ("" if one[name] is None else f"{one[name]:.9g}" for name in _FIGURES)
    return one["name"], one["units"], *figures, "" if one["missing"] is None else str(one["missing"])

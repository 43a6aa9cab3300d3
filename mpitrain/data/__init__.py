"""Files, selection, partition, statistics and batches: numbers on their way to the network."""

from typing import TYPE_CHECKING

from mpitrain.faces import loaded_on_use

if TYPE_CHECKING:
    from mpitrain.data.dataset.batches import BatchPlan, EvaluationSource, Microbatch
    from mpitrain.data.dataset.dataset import Dataset, DataSummary
    from mpitrain.data.dataset.exchange import open_source_on_root
    from mpitrain.data.describe.names import CICE_INPUTS, CICE_TARGET
    from mpitrain.data.files.variable import FieldFile
    from mpitrain.data.samples import Samples, valid_rows
    from mpitrain.data.selection.opening import open_source
    from mpitrain.data.selection.settings import Selection, selection_of
    from mpitrain.data.selection.source import SampleSource
else:
    __getattr__ = loaded_on_use(
        __name__,
        {
            "dataset.batches": ("BatchPlan", "EvaluationSource", "Microbatch"),
            "dataset.dataset": ("DataSummary", "Dataset"),
            "dataset.exchange": ("open_source_on_root",),
            "files.variable": ("FieldFile",),
            "samples": ("Samples", "valid_rows"),
            "describe.names": ("CICE_INPUTS", "CICE_TARGET"),
            "selection.opening": ("open_source",),
            "selection.settings": ("Selection", "selection_of"),
            "selection.source": ("SampleSource",),
        },
    )

__all__ = [
    "CICE_INPUTS",
    "CICE_TARGET",
    "BatchPlan",
    "DataSummary",
    "Dataset",
    "EvaluationSource",
    "FieldFile",
    "Microbatch",
    "SampleSource",
    "Samples",
    "Selection",
    "open_source",
    "open_source_on_root",
    "selection_of",
    "valid_rows",
]  # fmt: skip

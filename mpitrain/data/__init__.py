"""Data pipeline: files, selection of samples, partition over the ranks, statistics and batches."""

from typing import TYPE_CHECKING

from mpitrain.faces import lazy_attributes

if TYPE_CHECKING:
    from mpitrain.data.dataset.batches import BatchPlan, EvaluationSource, Microbatch
    from mpitrain.data.dataset.dataset import Dataset, DataSummary
    from mpitrain.data.dataset.exchange import open_source_on_root
    from mpitrain.data.dataset.split_rule import TEST, TRAINING, UNUSED, VALIDATION, Roles, SplitRule
    from mpitrain.data.describe.names import CICE_INPUTS, CICE_LATITUDE, CICE_LONGITUDE, CICE_OCEAN_MASK, CICE_TARGET
    from mpitrain.data.files.variable import FieldFile, VariableInfo
    from mpitrain.data.formats.in_memory import VARIABLES_FILE, GivenVariable, write_variables
    from mpitrain.data.formats.joined import first_of_each_kind, open_joined_files
    from mpitrain.data.samples import Samples, valid_rows
    from mpitrain.data.selection.coordinates import (
        Coordinates,
        dates_of_levels,
        known_ranks,
        open_coordinates,
        places_of_levels,
    )
    from mpitrain.data.selection.expressions.naming import Asked
    from mpitrain.data.selection.opening import open_source
    from mpitrain.data.selection.settings import Selection, expand_paths, name_files, selection_of
    from mpitrain.data.selection.source import SampleSource
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "dataset.batches": ("BatchPlan", "EvaluationSource", "Microbatch"),
            "dataset.dataset": ("DataSummary", "Dataset"),
            "dataset.exchange": ("open_source_on_root",),
            "dataset.split_rule": ("TEST", "TRAINING", "UNUSED", "VALIDATION", "Roles", "SplitRule"),
            "files.variable": ("FieldFile", "VariableInfo"),
            "formats.in_memory": ("VARIABLES_FILE", "GivenVariable", "write_variables"),
            "formats.joined": ("first_of_each_kind", "open_joined_files"),
            "samples": ("Samples", "valid_rows"),
            "describe.names": ("CICE_INPUTS", "CICE_LATITUDE", "CICE_LONGITUDE", "CICE_OCEAN_MASK", "CICE_TARGET"),
            "selection.coordinates": (
                "Coordinates",
                "dates_of_levels",
                "known_ranks",
                "open_coordinates",
                "places_of_levels",
            ),
            "selection.expressions.naming": ("Asked",),
            "selection.opening": ("open_source",),
            "selection.settings": ("Selection", "expand_paths", "name_files", "selection_of"),
            "selection.source": ("SampleSource",),
        },
    )

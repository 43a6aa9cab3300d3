"""What a run is: models of all settings, read from YAML and the command line, checked once and whole."""

from mpitrain.config.data import DataSection, DomainSection, VariablesSection
from mpitrain.config.ensemble import EnsembleSection
from mpitrain.config.load import LoadedConfig, load_run_config, load_settings_tree, overridden_keys
from mpitrain.config.output import OutputSection, PredictionSection, TrackingSection
from mpitrain.config.run import RunConfig, render_schema
from mpitrain.config.training import (
    ComputeSection,
    DistributedSection,
    TrainingSection,
)
from mpitrain.config.yaml import render_yaml

__all__ = [
    "ComputeSection",
    "DataSection",
    "DistributedSection",
    "DomainSection",
    "EnsembleSection",
    "LoadedConfig",
    "OutputSection",
    "PredictionSection",
    "RunConfig",
    "TrackingSection",
    "TrainingSection",
    "VariablesSection",
    "load_run_config",
    "load_settings_tree",
    "overridden_keys",
    "render_schema",
    "render_yaml",
]

"""What a run is: models of all settings, read from YAML and the command line, checked once and whole."""

from mpitrain.config.data import DataSection, DomainSection, VariablesSection
from mpitrain.config.ensemble import EnsembleSection
from mpitrain.config.load import LoadedConfig, load_run_config
from mpitrain.config.model import ModelSection
from mpitrain.config.output import OutputSection, PredictionSection, TrackingSection
from mpitrain.config.run import RunConfig, render_schema
from mpitrain.config.training import (
    ComputeSection,
    DistributedSection,
    OptimizerSection,
    SchedulerSection,
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
    "ModelSection",
    "OptimizerSection",
    "OutputSection",
    "PredictionSection",
    "RunConfig",
    "SchedulerSection",
    "TrackingSection",
    "TrainingSection",
    "VariablesSection",
    "load_run_config",
    "render_schema",
    "render_yaml",
]

"""What a run is: models of all settings, read from YAML and the command line, checked once and whole."""

from mpitrain.config.load import LoadedConfig, load_run_config
from mpitrain.config.render import render_schema, render_yaml
from mpitrain.config.run_config import RunConfig
from mpitrain.config.sections import (
    ComputeSection,
    DataSection,
    DistributedSection,
    DomainSection,
    ModelSection,
    OptimizerSection,
    OutputSection,
    PredictionSection,
    SchedulerSection,
    TrainingSection,
    VariablesSection,
)

__all__ = [
    "ComputeSection",
    "DataSection",
    "DistributedSection",
    "DomainSection",
    "LoadedConfig",
    "ModelSection",
    "OptimizerSection",
    "OutputSection",
    "PredictionSection",
    "RunConfig",
    "SchedulerSection",
    "TrainingSection",
    "VariablesSection",
    "load_run_config",
    "render_schema",
    "render_yaml",
]

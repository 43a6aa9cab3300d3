"""Settings of a run: models of all sections, read from YAML and the command line and validated once, all together."""

from typing import TYPE_CHECKING

from mpitrain.faces import lazy_attributes

if TYPE_CHECKING:
    from mpitrain.config.advice.defaults import OpenSettings, SampleCount
    from mpitrain.config.component import CodeName, TypedComponent, object_at
    from mpitrain.config.data import FIRST_RULES, NEWEST_RULES, DataSection, DomainSection, VariablesSection
    from mpitrain.config.ensemble import EnsembleSection
    from mpitrain.config.load import LoadedConfig, load_run_config, load_settings_tree, overridden_keys
    from mpitrain.config.model import TargetTransform
    from mpitrain.config.named_code import CodeComponent, options_of
    from mpitrain.config.output import OutputSection, PredictionSection, TrackingSection
    from mpitrain.config.run import RunConfig, render_schema
    from mpitrain.config.section import Count, CountOrZero, NumberOrZero, PositiveNumber
    from mpitrain.config.training import ComputeSection, DistributedSection, TrainingSection
    from mpitrain.config.yaml import render_yaml, shorten, show_value
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "advice.defaults": ("OpenSettings", "SampleCount"),
            "component": ("CodeName", "TypedComponent", "object_at"),
            "data": ("DataSection", "DomainSection", "FIRST_RULES", "NEWEST_RULES", "VariablesSection"),
            "ensemble": ("EnsembleSection",),
            "load": ("LoadedConfig", "load_run_config", "load_settings_tree", "overridden_keys"),
            "model": ("TargetTransform",),
            "named_code": ("CodeComponent", "options_of"),
            "output": ("OutputSection", "PredictionSection", "TrackingSection"),
            "run": ("RunConfig", "render_schema"),
            "section": ("Count", "CountOrZero", "NumberOrZero", "PositiveNumber"),
            "training": ("ComputeSection", "DistributedSection", "TrainingSection"),
            "yaml": ("render_yaml", "shorten", "show_value"),
        },
    )

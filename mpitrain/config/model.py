"""The section `model`: which network is trained."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from mpitrain.config.section import Count, PositiveNumber, Section, Text

Activation = Literal["none", "sigmoid", "tanh", "relu", "gelu", "silu"]
LARGEST_UNET_LEVELS = 8
ICE_NAMES, ICE_STANDARD_NAMES = ("aice", "siconc", "icec", "sic"), ("sea_ice_area_fraction",)
# CICE marks how often a history variable is written: hourly, daily, monthly, each step.
CICE_SUFFIX = re.compile(r"_(h|d|m|y|1|inst)$")
Probability = Annotated[float, Field(ge=0, lt=1)]
ModelName = Annotated[
    str,
    Field(
        pattern=r"^(icenet|mlp|cnn|unet|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$",
        json_schema_extra={"allowed": "icenet, mlp, cnn, unet, or your own as package.module:callable"},
    ),
]

TransformSetting = Literal["log", "logit"] | Annotated[dict[Literal["power"], PositiveNumber], Field(min_length=1)]
OutputTransforms = Annotated[
    dict[str, TransformSetting],
    Field(json_schema_extra={"allowed": "a mapping of targets to log, logit or {power: 0.5}, such as {precip: log}"}),
]


class ModelSection(Section):
    """The network."""

    name: ModelName | None = None
    """icenet, mlp, cnn, unet, or your own as package.module:callable; null means icenet where the only target is the
    ice concentration, by its name, learnt as it is, and there is one hidden layer; else mlp."""
    input_size: Count | None = None
    """Number of input features; null means as many as the data has."""
    hidden_size: Count = 16
    """Number of hidden units of each layer; of cnn and unet: channels of the first."""
    hidden_layers: Count = 1
    """Number of hidden layers; of unet: levels below the first."""
    output_size: Count | None = None
    """Number of output features; null means as many as the data has."""
    hidden_activation: Activation | None = None
    """Function after each hidden layer; null means none for icenet, as in the C++ program, and relu for the others."""
    output_activation: Activation | None = None
    """Function after the last layer; null means sigmoid for icenet and none for the others."""
    dropout: Probability = 0.0
    """Probability with which a hidden unit (cnn, unet: a channel) is left out of a training step."""
    batch_norm: bool = False
    """Normalise each hidden layer over the batch: each virtual rank's microbatch by itself, or all with
    distributed.sync_batch_norm."""
    layer_norm: bool = False
    """Normalise the units of each hidden layer of mlp over each sample by itself, before the activation; not together
    with batch_norm."""
    residual: bool = False
    """Add to the outputs of each hidden layer of mlp after the first its inputs: x + f(x)."""
    normalize_outputs: bool | None = None
    """Learn (y - mean) / std of the targets; model.pt answers in physical units. Null means true, but
    false for icenet and where output_activation is set."""
    output_transforms: OutputTransforms | None = None
    """Learn log(y), logit(y) or a power of some targets, by their names: {precip: log, cover: logit, snow: {power:
    0.5}}. Statistics and losses are of what is learnt; model.pt has the inverse, and answers in physical units."""
    kernel_size: Count = 3
    """Width of the convolutions of cnn and unet, odd."""
    periodic: bool = False
    """Let the convolutions of cnn and unet wrap around along the last axis, as longitudes do."""
    initial_weights: Text | None = None
    """File whose weights the training starts from: NetCDF, or a model.pt; null draws them from the seed."""


def model_name(settings: ModelSection) -> str:
    """Return the name with null resolved, of a network for the ice concentration."""
    return settings.name or ("icenet" if settings.hidden_layers == 1 and not settings.output_transforms else "mlp")


def named_for(settings: ModelSection, target_names: Sequence[str] | None) -> ModelSection:
    """Return the section with its name resolved for targets (None: the ice concentration), by their names alone."""
    is_ice = target_names is None or (len(target_names) == 1 and is_ice_concentration(target_names[0]))
    return settings.model_copy(update={"name": model_name(settings) if is_ice else settings.name or "mlp"})


def is_ice_concentration(name: str) -> bool:
    """Tell whether a variable's name, short or standard, is one of the ice concentration, whatever file it is in."""
    short = CICE_SUFFIX.sub("", name.rpartition("/")[2].lower())
    return short in ICE_NAMES or name in ICE_STANDARD_NAMES


@dataclass(frozen=True)
class TargetTransform:
    """What is learnt in place of a target y: log(y), logit(y) = log(y / (1 - y)), or y to the power `exponent`."""

    kind: Literal["log", "logit", "power"]
    exponent: float = 1.0

    @property
    def setting(self) -> TransformSetting:
        """The transform as a value of `model.output_transforms`."""
        return {"power": self.exponent} if self.kind == "power" else self.kind

    @property
    def words(self) -> str:
        """The transform as the settings spell it."""
        return f"{{power: {self.exponent:g}}}" if self.kind == "power" else self.kind

    @property
    def domain_words(self) -> str:
        """What the target's values must be."""
        return {"log": "above 0", "logit": "between 0 and 1, without the ends", "power": "0 or above"}[self.kind]


def target_transforms(settings: ModelSection) -> Mapping[str, TargetTransform]:
    """Return `output_transforms` by the targets' names."""
    return {name: transform_of(one) for name, one in (settings.output_transforms or {}).items()}


def transform_of(setting: TransformSetting) -> TargetTransform:
    """Return what a value of `output_transforms` means."""
    return TargetTransform(setting) if isinstance(setting, str) else TargetTransform("power", setting["power"])


def output_bounds(settings: ModelSection) -> tuple[float, float] | None:
    """Return the lowest and the highest answer that the function after the last layer allows; None where any is."""
    usual = "sigmoid" if model_name(settings) == "icenet" else "none"
    return _BOUNDS.get(settings.output_activation or usual)


def needs_fields(settings: ModelSection) -> bool | None:
    """Return whether the network takes whole fields (true) or points (false); None for your own: it may do either."""
    name = model_name(settings)
    return None if ":" in name else name in _FIELD_MODELS


def normalizes_outputs(settings: ModelSection) -> bool:
    """Return whether the targets' mean and standard deviation go into the model, null resolved."""
    if settings.normalize_outputs is not None:
        return settings.normalize_outputs
    return model_name(settings) != "icenet" and settings.output_activation in (None, "none")


def find_model_problems(settings: ModelSection) -> Iterator[tuple[str, object, str]]:
    """Yield settings that do not go together: key, value, and why not and what to do."""
    name, defaults = model_name(settings), ModelSection()
    for field, models in _ONLY_IN.items():
        value = getattr(settings, field)
        kind = "own" if ":" in name else name
        if value != getattr(defaults, field) and kind not in models:
            yield f"model.{field}", value, _not_in(kind, models)
    if name in _FIELD_MODELS and settings.kernel_size % 2 == 0:
        yield "model.kernel_size", settings.kernel_size, "even, so it has no middle; give an odd number such as 3 or 5"
    if name == "unet" and settings.hidden_layers > LARGEST_UNET_LEVELS:
        what = f"each level of unet doubles the channels; give at most {LARGEST_UNET_LEVELS}"
        yield "model.hidden_layers", settings.hidden_layers, what
    if settings.layer_norm and settings.batch_norm and name == "mlp":
        yield "model.layer_norm", True, "not together with model.batch_norm=true, as a layer has one norm; remove one"
    elif settings.layer_norm and settings.hidden_size == 1 and name == "mlp":
        yield "model.layer_norm", True, "of model.hidden_size=1 gives the same for every sample; give at least 2"
    if settings.residual and settings.hidden_layers == 1 and name == "mlp":
        yield "model.residual", True, "of no effect on a single hidden layer; give model.hidden_layers of at least 2"
    if settings.normalize_outputs and name == "icenet":
        yield "model.normalize_outputs", True, _not_in(name, ("mlp",))
    elif settings.normalize_outputs and settings.output_activation not in (None, "none"):
        what = f"not together with model.output_activation={settings.output_activation}, which bounds what is learnt"
        yield "model.normalize_outputs", True, f"{what}; remove one of them"


def _not_in(kind: str, models: tuple[str, ...]) -> str:
    if kind == "own":
        return "your own network decides this itself; remove the key and set it in your code"
    others = [model for model in models if model != "own"]  # whose name is the user's
    return f"{kind} has no such option; remove the key or give model.name={' or '.join(others)}"


_FIELD_MODELS = ("cnn", "unet")
_BOUNDS = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "relu": (0.0, math.inf)}
# Fields of the section that only some models have.
_ONLY_IN: dict[str, tuple[str, ...]] = {
    "hidden_layers": ("mlp", "cnn", "unet"),
    "hidden_activation": ("icenet", "mlp", "cnn", "unet"),
    "output_activation": ("icenet", "mlp", "cnn", "unet"),
    "dropout": ("mlp", "cnn", "unet"),
    "batch_norm": ("mlp", "cnn", "unet"),
    "layer_norm": ("mlp",),
    "residual": ("mlp",),
    "output_transforms": ("mlp", "cnn", "unet", "own"),
    "kernel_size": _FIELD_MODELS,
    "periodic": _FIELD_MODELS,
}

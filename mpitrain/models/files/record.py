"""What our model.pt says about its network, so that reading it builds the network anew and runs nothing of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import ValidationError
from torch import nn

from mpitrain.config.model import ModelSection, TargetTransform, TransformSetting, model_name, transform_of
from mpitrain.config.section import Count, Section
from mpitrain.config.yaml import shorten
from mpitrain.models.files.archive import RECORD
from mpitrain.models.files.zip_parts import ArchiveError
from mpitrain.models.output_transforms import transforms_of

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_ATTRIBUTE, _ENGINE = "_mpitrain_architecture", "_mpitrain_engine"


class NetworkRecord(Section):
    """The text `RECORD` in a model.pt: everything that `build_model` needs but the seed.

    `engine`: which engine trained it, null where the file does not say; predictions follow its arithmetic.
    """

    format: Literal["mpitrain network"] = "mpitrain network"
    version: Literal[1] = 1
    model: ModelSection
    num_inputs: Count
    num_outputs: Count
    dtype: Literal["float32", "float64"]
    engine: Literal["reference", "eager", "traced", "ddp", "compiled", "cuda_graph"] | None = None
    output_transforms: list[TransformSetting | None] | None = None
    """What each output's network learnt, null for itself: `model.output_transforms` by number, null for none."""

    @property
    def transforms(self) -> Sequence[TargetTransform | None]:
        """See `output_transforms`."""
        return [None if one is None else transform_of(one) for one in self.output_transforms or ()]

    @property
    def is_code(self) -> bool:
        """Whether the network is a user's own, `package.module:callable`."""
        return ":" in model_name(self.model)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of parameters, inputs and outputs."""
        return _DTYPES[self.dtype]


def remember_architecture(model: nn.Module, settings: ModelSection) -> None:
    """Note on `model` what it was built from; copies of it know it too."""
    # A path on the machine that trained is of no use to a reader, and targets have no names there.
    named = settings.model_copy(
        update={"name": model_name(settings), "initial_weights": None, "output_transforms": None}
    )
    object.__setattr__(model, _ATTRIBUTE, named)


def architecture_of(model: nn.Module) -> ModelSection | None:
    """Return what `remember_architecture` noted; None for any other model."""
    settings: ModelSection | None = getattr(model, _ATTRIBUTE, None)
    return settings


def remember_engine(model: nn.Module, engine: str | None) -> None:
    """Note on `model` which engine trains it; copies of it know it too."""
    object.__setattr__(model, _ENGINE, engine)


def engine_of(model: nn.Module) -> str | None:
    """Return the engine that trained the model; None where that is not known."""
    engine: str | None = getattr(model, _ENGINE, None)
    return engine


def is_rebuilt(model: nn.Module) -> bool:
    """Whether a file of this model is read without its code: not so a user's own network, which is nothing else."""
    settings = architecture_of(model)
    return settings is not None and ":" not in model_name(settings)


def record_of(model: nn.Module, num_inputs: int, num_outputs: int, dtype: torch.dtype) -> NetworkRecord | None:
    """Return the record of a model that was built from settings; None for any other."""
    settings = architecture_of(model)
    name = next((name for name, known in _DTYPES.items() if known == dtype), None)
    if settings is None or name is None:
        return None
    sizes = {"num_inputs": num_inputs, "num_outputs": num_outputs}
    learnt = [None if one is None else one.setting for one in transforms_of(model)] or None
    found = {"model": settings, "dtype": name, "engine": engine_of(model), "output_transforms": learnt}
    return NetworkRecord.model_validate(found | sizes)


def parse_record(text: bytes, tensors: Mapping[str, torch.Tensor]) -> NetworkRecord:
    """Return the record that `text` spells; no size in it is larger than the `tensors` next to it allow.

    Raises ArchiveError for anything else.
    """
    try:
        record = NetworkRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = shorten(".".join(map(str, first["loc"])) or "text")
        raise ArchiveError(f"its record {RECORD} has a wrong '{place}'") from error
    largest = max((tensor.numel() for tensor in tensors.values()), default=0)
    sizes = (record.num_inputs, record.num_outputs, record.model.hidden_size)
    if record.output_transforms is not None and len(record.output_transforms) != record.num_outputs:
        raise ArchiveError(f"its record {RECORD} has transforms for other outputs than its own")
    if not record.is_code and (max(sizes) > largest or record.model.hidden_layers > len(tensors)):
        raise ArchiveError(f"its record {RECORD} claims sizes that its numbers do not have")
    return record

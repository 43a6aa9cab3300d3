"""Record of the network in a model file, from which the reader rebuilds the network without running code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ValidationError

from mpitrain.comm import Array
from mpitrain.config import Count, TargetTransform, shorten
from mpitrain.config.model import NETWORKS, TransformSetting, transform_of
from mpitrain.config.section import Section
from mpitrain.models.dense import DenseModel, architecture
from mpitrain.models.files.zip_parts import ArchiveError
from mpitrain.models.networks.network import Network

RECORD = "mpitrain.json"
"""The name of the record in a model.pt."""
_DTYPES = ("float32", "float64")
_ATTRIBUTE, _ENGINE, _RUN = "_mpitrain_architecture", "_mpitrain_engine", "_mpitrain_run"


class NetworkRecord(Section):
    """The text `RECORD` in a model.pt: everything that `build_model` needs except the seed.

    `engine`: the engine that trained the network, null if unknown; predictions use the arithmetic of that engine.
    """

    format: Literal["mpitrain network"] = "mpitrain network"
    version: Literal[1] = 1
    model: Annotated[Any, NETWORKS]
    num_inputs: Count
    num_outputs: Count
    dtype: Literal["float32", "float64"]
    engine: Literal["reference", "eager", "traced", "ddp", "compiled", "cuda_graph"] | None = None
    run: str | None = None
    """The identity of the launch that trained the network, null if unknown."""
    output_transforms: list[TransformSetting | None] | None = None
    """`model.output_transforms` in the order of the targets, null for a target without; null for no transforms."""

    @property
    def transforms(self) -> Sequence[TargetTransform | None]:
        """See `output_transforms`."""
        return [None if one is None else transform_of(one) for one in self.output_transforms or ()]

    @property
    def is_code(self) -> bool:
        """Whether the network is a user's own, `package.module:callable`."""
        return bool(self.model.is_code)


def store_architecture(model: Any, settings: Network) -> None:
    """Store on `model` the settings from which it was built; copies of `model` keep them."""
    object.__setattr__(model, _ATTRIBUTE, architecture(settings))


def architecture_of(model: Any) -> Network | None:
    """Return the settings from which a model was built.

    Parameters
    ----------
    model : DenseModel or torch.nn.Module

    Returns
    -------
    Network or None
        The section `model` with `initial_weights` and `output_transforms` null; None if not built from settings.
    """
    return model.settings if isinstance(model, DenseModel) else getattr(model, _ATTRIBUTE, None)


def grid_of(model: Any) -> tuple[int, int] | None:
    """Return the only grid that a network accepts.

    Parameters
    ----------
    model : DenseModel or torch.nn.Module

    Returns
    -------
    tuple of int or None
        Numbers of rows H and columns W (`model.grid`); None if the network accepts any grid.
    """
    grid = getattr(architecture_of(model), "grid", None)
    return None if grid is None else (grid[0], grid[1])


def store_engine(model: Any, engine: str | None) -> None:
    """Store on `model` the engine that trains it; copies of `model` keep it."""
    if isinstance(model, DenseModel):
        model.engine = engine
    else:
        object.__setattr__(model, _ENGINE, engine)


def engine_of(model: Any) -> str | None:
    """Return the engine that trained the model; None if unknown."""
    return model.engine if isinstance(model, DenseModel) else getattr(model, _ENGINE, None)


def store_run(model: Any, run: str | None) -> None:
    """Store on `model` the identity of the launch that trains it; copies of `model` keep it."""
    object.__setattr__(model, _RUN, run)


def run_of(model: Any) -> str | None:
    """Return the identity of the launch that trained the model; None if unknown."""
    return getattr(model, _RUN, None)


def is_rebuilt(model: Any) -> bool:
    """Return whether a file of this model can be read without running code.

    Parameters
    ----------
    model : DenseModel or torch.nn.Module

    Returns
    -------
    bool
        False for a user's own network, and for a model that was not built from settings.
    """
    settings = architecture_of(model)
    return settings is not None and not settings.is_code


def record_of(model: Any, num_inputs: int, num_outputs: int, dtype: Any) -> NetworkRecord | None:
    """Return the record of a model that was built from settings, in float32 or float64; None for any other."""
    settings = architecture_of(model)
    name = str(dtype).removeprefix("torch.")
    if settings is None or name not in _DTYPES:
        return None
    sizes = {"num_inputs": num_inputs, "num_outputs": num_outputs}
    learnt = [None if one is None else one.setting for one in learnt_transforms(model)] or None
    found = {"model": settings, "dtype": name, "engine": engine_of(model), "output_transforms": learnt}
    found["run"] = run_of(model)
    return NetworkRecord.model_validate(found | sizes)


def learnt_transforms(model: Any) -> Sequence[TargetTransform | None]:
    """Return the transform of each target, None for no transform; empty if no target is transformed."""
    if isinstance(model, DenseModel):
        return model.transforms
    from mpitrain.models.output_transforms import transforms_of

    return transforms_of(model)


def parse_record(text: bytes, tensors: Mapping[str, Array]) -> NetworkRecord:
    """Return the record that `text` describes.

    Raises ArchiveError if it is invalid, or if it states larger sizes than the file's `tensors` allow.
    """
    try:
        record = NetworkRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = shorten(".".join(map(str, first["loc"])) or "text")
        raise ArchiveError(f"its record {RECORD} has a wrong '{location}'") from error
    fewest = record.model.min_numbers(record.num_inputs, record.num_outputs)
    is_larger = fewest > sum(math.prod(tensor.shape) for tensor in tensors.values())
    if record.output_transforms is not None and len(record.output_transforms) != record.num_outputs:
        raise ArchiveError(f"its record {RECORD} has another number of transforms than of outputs")
    if not record.is_code and (is_larger or getattr(record.model, "hidden_layers", 1) > len(tensors)):
        raise ArchiveError(f"its record {RECORD} states sizes that its tensors do not have")
    return record

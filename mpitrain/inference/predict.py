"""`mpitrain predict`: loads the network, opens the data, predicts, and prints the errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpitrain.comm import Ranks, open_tensors
from mpitrain.config import LoadedConfig, RunConfig, load_run_config
from mpitrain.data import Selection
from mpitrain.data.selection.settings import selection_to_predict
from mpitrain.errors import ConfigError, UserError
from mpitrain.inference.arithmetic import Choice
from mpitrain.inference.cf_variables import check_prediction, icenet_names
from mpitrain.inference.ensemble import is_ensemble, load_ensemble, load_network, member_folders
from mpitrain.inference.maps import draw_prediction
from mpitrain.inference.output_grid import Layout
from mpitrain.inference.predictor import NETCDF, open_for_prediction, predict_to_file, print_prediction
from mpitrain.inference.roles import notices_of_unknown_targets, roles_in_runs
from mpitrain.models import StoredNetwork
from mpitrain.models.files.file_network import accepts_fields
from mpitrain.train import RunFolder, load_folder_settings, trusts_code_of

_THINNING = ("data.thin_fraction=", "data.max_patterns=")
_COLUMN_MARKS = ("inputs[:, ", "targets[:, ")  # how the names of a table's unnamed columns begin


@dataclass(frozen=True)
class PredictRequest:
    """Arguments of `mpitrain predict`.

    `jacobian` None: write derivatives for points, not for fields. `trust_code`: allow running the code of a model that
    is not one of the package's own networks. `arithmetic`: see `arithmetic.choose_arithmetic`. `layout`: see
    `output_grid.Layout`. `overwrite`: replace existing files even if no prediction wrote them.
    """

    model: Path
    overrides: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    output: Path = Path("prediction.nc")
    jacobian: bool | None = None
    maps: Path | None = None
    trust_code: bool = False
    arithmetic: Choice = "auto"
    layout: Layout = "auto"
    overwrite: bool = False


def predict(ranks: Ranks, request: PredictRequest) -> int:
    """Predict as requested and write the file; return exit code 0. Collective.

    Raises the errors of `mpitrain.errors` on all ranks together; no file is then left behind.
    """
    trusted = ranks.on_root(lambda: trusts_code_of(request.model, request.trust_code))
    request = replace(request, trust_code=trusted)
    loaded = ranks.on_all_ranks(lambda: _load_settings(request))
    of_ranks = loaded.config.semantics, loaded.config.compute, loaded.config.training
    with open_tensors(ranks, *of_ranks, loaded.config.distributed.timeout_s, needs_torch=False):
        ranks.note(*loaded.notices, *ranks.notices)
        activation = getattr(loaded.config.model, "hidden_activation", None) or "none"
        network = ranks.on_all_ranks(lambda: _load_network(request, loaded.config.output.model_file, activation))
        note = ranks.on_root(lambda: _note_of_another_run(request, loaded.config.output.model_file, network))
        if note is not None:
            ranks.note(note)
        selection = ranks.on_all_ranks(lambda: _selection(request, loaded.config, network))
        source = open_for_prediction(selection, network.num_outputs, ranks)
        ranks.note(*source.notices)
        inputs = (*source.paths, *([] if request.model.is_dir() else [request.model]))
        ranks.on_root(lambda: _check_output(request, inputs))
        if request.model.is_dir() and not source.has_targets:
            ranks.note(
                *ranks.on_root(lambda: notices_of_unknown_targets(RunFolder(request.model), source.files[0].path))
            )
        with_jacobian = ranks.on_all_ranks(lambda: _wants_jacobian(request, source.kind))
        if request.layout == "auto" and icenet_names(network, source) is not None:
            ranks.note(
                f"{request.output}: one row per point, as the C++ program writes it; --layout grid writes the grid"
            )
        runs = ranks.on_all_ranks(lambda: _runs_of(request.model))
        roles = roles_in_runs(runs, request.trust_code, source, ranks) if runs else None
        prediction = predict_to_file(
            network, source, request.output, ranks, with_jacobian, request.arithmetic, request.layout, roles
        )
        print_prediction(prediction, network, source, ranks)
        ranks.say(*map(str, _draw(request, ranks)))
    return 0


def _check_output(request: PredictRequest, inputs: Sequence[Path]) -> None:
    check_prediction(request.output, inputs, request.overwrite)
    if request.maps is not None and request.output.suffix not in NETCDF:
        raise UserError(
            f"--maps: needs a NetCDF file, not {request.output}; give an --output that ends in .nc, or leave --maps out"
        )


def _runs_of(model: Path) -> list[Path]:
    """Return the folders of the runs that trained a model; an empty list if the model is a file."""
    if not model.is_dir():
        return []
    return member_folders(model) if is_ensemble(model) else [model]


def _load_settings(request: PredictRequest) -> LoadedConfig:
    for override in request.overrides:
        if override.startswith(_THINNING):
            raise UserError(f"{override}: every selected point is predicted; leave it out, or narrow the domain")
    if not request.model.is_dir():
        return load_run_config(None, request.overrides)
    folder = RunFolder(request.model)
    if not folder.config.is_file():
        raise UserError(f"{request.model}: holds no run (no {folder.config.name}); give a run folder, or a model.pt")
    loaded = load_folder_settings(folder, request.trust_code, request.overrides)
    config = loaded.config
    if config.data.lag_step_days is None and is_ensemble(folder.path):
        member = RunFolder(member_folders(folder.path)[0])
        if member.config.is_file():  # it records the step of its data; nothing is built from its settings
            config = config.with_lag_step(load_folder_settings(member, trust_code=True).config.data.lag_step_days)
    return LoadedConfig(config, ())  # without notices: the training run has printed them


def _note_of_another_run(request: PredictRequest, model_file: str, network: StoredNetwork) -> str | None:
    folder = RunFolder(request.model, model_file)
    return folder.note_of_another_run(folder.model, network.run) if request.model.is_dir() else None


def _load_network(request: PredictRequest, model_file: str, activation: str) -> StoredNetwork:
    path = request.model
    if is_ensemble(path):
        return load_ensemble(path, model_file, activation, request.trust_code)
    if path.is_dir():
        path = RunFolder(path, model_file).stored_model
        if not path.is_file():
            raise UserError(
                f"{path}: no such file; if the run has not ended, mpitrain export writes the model of a checkpoint"
            )
    return load_network(path, activation, request.trust_code)


def _selection(request: PredictRequest, config: RunConfig, network: StoredNetwork) -> Selection:
    """Return the selection to predict for, from the command line and from the model's file."""
    selection = selection_to_predict(config, _files(request, config.data.entries))
    dtype = "float64" if network.dtype.itemsize == 8 else "float32"
    names = network.description
    selection = replace(selection, dtype=dtype, units=names.units, longitude_ranges=names.ranges)
    if request.model.is_dir():
        # A range of levels stands for the levels that the network was trained on, whatever levels this file has.
        is_changed = any(override.startswith("variables.") for override in request.overrides)
        if selection.input_names is None or is_changed or not names.input_names:
            return selection
        return replace(
            selection,
            input_names=_names(names.input_names) or selection.input_names,
            target_names=(_names(names.target_names) or selection.target_names) if selection.target_names else None,
        )
    is_given = any(override.startswith("data.samples=") for override in request.overrides)
    return replace(
        selection,
        kind="fields" if not is_given and accepts_fields(network) else selection.kind,
        input_names=selection.input_names or _names(names.input_names),
        target_names=selection.target_names or _names(names.target_names),
    )


def _files(request: PredictRequest, entries: Sequence[str]) -> Sequence[str]:
    if request.data or entries:
        return request.data or entries
    synthetic = RunFolder(request.model).synthetic_history
    if not synthetic.is_file():
        raise ConfigError("no data to predict for; give --data FILE")
    return [str(synthetic)]


def _names(names: Sequence[str]) -> tuple[str, ...] | None:
    return tuple(names) if names and not any(name.startswith(_COLUMN_MARKS) for name in names) else None


def _wants_jacobian(request: PredictRequest, kind: str) -> bool:
    if request.jacobian and kind == "fields":
        raise UserError("--jacobian: fields have too many derivatives to write; leave the flag out")
    return kind == "points" if request.jacobian is None else request.jacobian


def _draw(request: PredictRequest, ranks: Ranks) -> list[Path]:
    if request.maps is None:
        return []
    folder = request.maps
    return ranks.on_root(lambda: draw_prediction(request.output, folder, request.overwrite))

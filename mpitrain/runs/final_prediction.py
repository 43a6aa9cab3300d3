"""The test and the prediction at the end of a run.

The settings are `data.test_path`, `data.test_split`, `prediction.cice_history` and `prediction.output_filename`. Few
runs predict, so the modules for predictions are imported only when they are needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mpitrain.comm import Ranks, host_array
from mpitrain.config import PredictionSection, RunConfig
from mpitrain.data import SampleSource, open_source, selection_of
from mpitrain.data.selection.settings import default_or_given_names, selection_to_predict
from mpitrain.errors import DataError, OutputError
from mpitrain.inference.quality.evaluation import evaluator_of
from mpitrain.inference.quality.skill import open_test_files as open_test_files  # for the beginning of a run
from mpitrain.inference.quality.skill import skill_on_files, skill_on_part
from mpitrain.models.files.file_network import describe_network
from mpitrain.models.kinds import output_physical_units
from mpitrain.observe import MetricsFile, TestSkill
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.train import RunFolder

DEFAULT_NAME = "prediction.nc"


def is_wanted(prediction: PredictionSection) -> bool:
    """Return whether the settings ask for a prediction."""
    return prediction.cice_history is not None or prediction.output_filename is not None


def check_final_prediction(
    config: RunConfig, folder: RunFolder, inputs: Sequence[Path], overwrite: bool
) -> None:  # fmt: skip
    """Check before the training that the prediction after it is possible. Root only.

    Raises DataError if its data cannot be opened, OutputError if its file cannot be written.
    """
    if not is_wanted(config.prediction):
        return

    from mpitrain.inference.predictor import check_prediction, layout_in

    if config.prediction.cice_history is not None:
        num_targets = len(default_or_given_names(config.variables)[1])
        open_source(selection_to_predict(config, [config.prediction.cice_history]), num_predicted=num_targets).close()
        inputs = (*inputs, Path(config.prediction.cice_history))
    if config.prediction.output_filename is not None:
        parent = Path(config.prediction.output_filename).absolute().parent
        if parent != folder.path.absolute() and not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise OutputError(
                f"prediction.output_filename={config.prediction.output_filename}: the folder {parent} does not exist "
                "or cannot be written; create it, or give another file"
            )
    output = Path(config.prediction.output_filename or folder.path / DEFAULT_NAME)
    layout_in(output, "auto", config.data.samples)
    check_prediction(output, inputs, overwrite)


def predict_finally(ranks: Ranks, prepared: PreparedRun, files: Sequence[str], folder: RunFolder) -> None:
    """Write the prediction of the run's exported weights if the settings ask for one. Collective.

    Raises DataError or OutputError on all ranks; the other files of the run are complete by then.
    """
    config = prepared.config
    if not is_wanted(config.prediction):
        return
    from mpitrain.inference.predictor import open_for_prediction, predict_to_file, print_prediction
    from mpitrain.inference.roles import find_roles

    given = config.prediction.cice_history
    output = Path(config.prediction.output_filename or folder.path / DEFAULT_NAME)
    output_physical_units(prepared.model)
    # The prediction records the hash of the stored model file.
    network = ranks.on_all_ranks(lambda: describe_network(prepared.model, prepared.description, folder.stored_model))
    selection = selection_to_predict(config, list(files) if given is None else [given])
    known = prepared.description
    selection = replace(selection, units=known.units, longitude_ranges=known.ranges)
    source = open_for_prediction(selection, network.num_outputs, ranks)
    ranks.note(*(() if source.has_targets else source.notices))
    roles = find_roles(selection_of(config, files), config.split_data, source, ranks)
    prediction = predict_to_file(network, source, output, ranks, with_jacobian=source.kind == "points", roles=roles)
    print_prediction(prediction, network, source, ranks)


def skill_of_test(
    ranks: Ranks, prepared: PreparedRun, source: SampleSource, test_files: SampleSource | None, folder: RunFolder,
    step: int,
) -> TestSkill | None:  # fmt: skip
    """Return the skill of the exported weights on the test files, or on the part of `source` kept for the test.

    None without either. Adds the skill to the metrics file. Collective. Raises DataError or OutputError on all ranks.
    """
    summary = prepared.dataset.summary
    if test_files is None and not summary.num_test_samples:
        return None
    evaluator = evaluator_of(prepared.config.training, prepared.model, summary)
    mean = host_array(summary.normalization.mean)
    if test_files is not None:
        test = skill_on_files(evaluator, mean, test_files, ranks)
    else:
        assert summary.split is not None
        try:
            test = skill_on_part(evaluator, mean, source, summary.split, ranks)
        except DataError as error:  # raised on all ranks: the files may have been removed
            ranks.note(f"the test at the end is left out: {error}")
            return None
        if test.num_samples != summary.num_test_samples:
            ranks.note("the test at the end is left out: the data files have changed since the start")
            return None
    ranks.on_root(lambda: _record(test, folder, step))
    return test


def _record(test: TestSkill, folder: RunFolder, step: int) -> None:
    targets = {one.name: {"bias": one.bias, "rmse": one.rmse, "r2": one.r2} for one in test.targets}
    with MetricsFile(folder.metrics) as metrics:
        metrics.append(
            {"step": step, "test_loss": test.loss, "test_mean_predictor_loss": test.mean_predictor_loss,
             "num_test_samples": test.num_samples, "test_targets": targets}
        )  # fmt: skip

"""The start of a member in the engine of the previous one, without building anything again."""

from __future__ import annotations

from dataclasses import replace

from mpitrain.comm import Ranks
from mpitrain.config import RunConfig
from mpitrain.data import Dataset
from mpitrain.models import DenseModel, draw_dense_weights
from mpitrain.runs.build import may_be_reinitialised
from mpitrain.runs.layout import RunLayout
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.train.compiled.engine import CompiledEngine


def restarted(
    ended: PreparedRun | None, config: RunConfig, dataset: Dataset, layout: RunLayout, ranks: Ranks
) -> PreparedRun | None:
    """Return `ended` as a run of `config`, with the same bits as a newly built run; None if that is impossible.

    It is possible if a single rank trains with the compiled engine, from drawn initial weights, on the same samples,
    and if the settings differ only in the seed and the folder. Not collective: groups of several ranks get None.
    """
    if ended is None or ranks.world_size > 1 or dataset is not ended.dataset or layout != ended.layout:
        return None
    engine, known = ended.engine, ended.config
    if not isinstance(engine, CompiledEngine) or not isinstance(ended.model, DenseModel):
        return None
    if config.model.initial_weights is not None or config.data.streaming or not may_be_reinitialised(ended.model):
        return None
    if config != known.model_copy(update={"seed": config.seed, "output": config.output}):
        return None
    draw_dense_weights(ended.model, config.seed)
    plan = ended.plan
    engine.restart(
        lambda inputs: replace(
            inputs, seed=config.seed, batches=dataset.microbatches(plan, config.seed, config.shuffle)
        )
    )
    return replace(ended, config=config, settings={**ended.settings, "seed": config.seed})

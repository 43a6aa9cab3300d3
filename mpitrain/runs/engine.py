"""The batches and the step engine of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpitrain.comm import Ranks
from mpitrain.config import RunConfig, TrainingSection
from mpitrain.data import BatchPlan, Dataset, Microbatch
from mpitrain.data.dataset.batches import MicrobatchSource, plan_batches
from mpitrain.models.files.record import store_engine
from mpitrain.models.kinds import has_batch_norm
from mpitrain.runs.layout import RunLayout
from mpitrain.runs.model import check_output_shape, first_microbatch
from mpitrain.train import EngineRequest
from mpitrain.train.checkpoint.compatibility import check_batches
from mpitrain.train.engine_choice import EngineChoice
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.engines.standard import EngineInputs


def plan_run_batches(training: TrainingSection, dataset: Dataset, layout: RunLayout, ranks: Ranks) -> BatchPlan:
    """Return the sizes of the batches. Collective. Raises ConfigError on all ranks if they do not fit the data."""
    summary, num_virtual_ranks = dataset.summary, layout.virtual_ranks.num_virtual_ranks
    size = layout.global_batch_size
    plan = plan_batches(
        summary.num_training_samples, size, num_virtual_ranks, summary.largest_share, is_exact=layout.exact_batches
    )
    ranks.on_all_ranks(lambda: check_batches(training, plan, size))
    return plan


def rounding_notice(plan: BatchPlan, layout: RunLayout) -> list[str]:
    """Return a notice if a step uses more samples than the global batch size in the settings."""
    size = layout.global_batch_size
    if size == "full" or plan.global_batch_size <= int(size):
        return []
    return [
        f"a batch of {size} is computed in {plan.num_virtual_ranks} microbatches of {plan.microbatch_rows}: a step "
        f"uses {plan.global_batch_size} samples; a multiple of {plan.num_virtual_ranks} is not rounded up"
    ]


def open_microbatches(
    config: RunConfig, dataset: Dataset, model: Any, plan: BatchPlan, ranks: Ranks, checked_networks: set[str]
) -> tuple[Sequence[MicrobatchSource], Microbatch]:
    """Return the sources of this rank's microbatches, and its first microbatch. Collective.

    Applies the model to that microbatch unless `checked_networks`, the same on all ranks, has a network of the same
    settings and sizes. Raises ConfigError on all ranks if the outputs differ in shape from the targets.
    """
    sources, network = dataset.microbatches(plan, config.seed, config.shuffle), config.network
    example = ranks.on_all_ranks(lambda: first_microbatch(sources[0]))
    key = repr((network, example.inputs.shape[1:], example.targets.shape[1:]))
    if key not in checked_networks:
        ranks.on_all_ranks(lambda: check_output_shape(str(network.name), model, example))
        # Not for a user's own network: its code may return another shape next time.
        checked_networks |= set() if network.is_code else {key}
    return sources, example


def build_engine(
    request: EngineRequest, seed: int, choice: EngineChoice, dataset: Dataset, model: Any,
    sources: Sequence[MicrobatchSource], plan: BatchPlan, layout: RunLayout, ranks: Ranks,
) -> StepEngine:  # fmt: skip
    """Return the step engine of a run. Collective."""
    store_engine(model, choice.name)  # saved with the model: predictions depend on it
    held_out, names = dataset.evaluation(), dataset.summary.target_names
    of_run = request.training, request.distributed, seed
    inputs = EngineInputs(model, sources, held_out, plan, layout.virtual_ranks, ranks, *of_run, names)
    return ranks.on_all_ranks(lambda: choice.build(inputs))


def unused_notices(config: RunConfig, engine: str, model: Any, ranks: Ranks) -> list[str]:
    """Return a line for each setting that has no effect on these devices, with this engine or with this network."""
    notices = []
    if config.training.allow_tf32 and ranks.device.type != "cuda":
        notices.append("training.allow_tf32=true: has no effect, this run is on CPUs")
    if config.compute.instruction_set != "native" and engine != "compiled":
        notices.append(
            f"compute.instruction_set={config.compute.instruction_set}: has no effect on training.engine={engine}; "
            "only the compiled engine uses it"
        )
    if config.ensemble is not None:
        notices.append("ensemble: has no effect in a single run; `mpitrain ensemble` trains its members")
    if config.training.log_gpu_memory and ranks.device.type != "cuda":
        notices.append("training.log_gpu_memory=true: has no effect, this run is on CPUs")
    if config.distributed.sync_batch_norm and config.network.is_code and not has_batch_norm(model):
        notices.append("distributed.sync_batch_norm=true: has no effect, your network has no batch norm")
    return notices

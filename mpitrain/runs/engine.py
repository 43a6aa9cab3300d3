"""The step engine of a run: its batches, checked, and the engine itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from mpitrain.cluster.cpu.compiler_flags import fuses_products
from mpitrain.cluster.cpu.identity import detect_cpu
from mpitrain.cluster.cpu.mixture import describe_mixture
from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig
from mpitrain.data.dataset.batches import BatchPlan, Slice, SliceSource, plan_batches
from mpitrain.data.dataset.dataset import Dataset
from mpitrain.models.batch_norm import batch_norm_layers
from mpitrain.models.files.record import remember_engine
from mpitrain.runs.layout import RunLayout
from mpitrain.runs.model import check_output_shape, first_microbatch, first_weights_notices
from mpitrain.train.checkpoint.compatibility import check_batches
from mpitrain.train.engine_choice import EngineChoice
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.engines.standard import EngineInputs


def plan_run_batches(config: RunConfig, dataset: Dataset, layout: RunLayout, ranks: Ranks) -> BatchPlan:
    """Return the sizes of the batches. Collective. Raises ConfigError, on all ranks, where they do not fit the data."""
    summary, num_virtual_ranks = dataset.summary, layout.virtual_ranks.num_virtual_ranks
    size = layout.global_batch_size
    plan = plan_batches(summary.num_training_samples, size, num_virtual_ranks, summary.largest_share)
    ranks.on_all_ranks(lambda: check_batches(config, plan, size))
    return plan


def open_microbatches(
    config: RunConfig, dataset: Dataset, model: nn.Module, plan: BatchPlan, ranks: Ranks, known_to_answer: set[str]
) -> tuple[Sequence[SliceSource], Slice]:
    """Return where this rank's microbatches come from, and the very first one. Collective.

    The model is tried on it unless `known_to_answer`, the same on all ranks, has one of its settings and sizes. Raises
    ConfigError, on all ranks, where the network's outputs have another shape than the targets.
    """
    sources = dataset.microbatches(plan, config.seed, config.shuffle)
    example = ranks.on_all_ranks(lambda: first_microbatch(sources[0]))
    key = repr((config.network, example.inputs.shape[1:], example.targets.shape[1:]))
    if key not in known_to_answer:
        ranks.on_all_ranks(lambda: check_output_shape(str(config.network.name), model, example))
        # A user's own network is code, which may answer otherwise next time.
        known_to_answer |= set() if ":" in str(config.network.name) else {key}
    return sources, example


def build_engine(
    config: RunConfig, choice: EngineChoice, dataset: Dataset, model: nn.Module, sources: Sequence[SliceSource],
    plan: BatchPlan, layout: RunLayout, ranks: Ranks,
) -> StepEngine:  # fmt: skip
    """Return the engine that takes the steps of a run. Collective."""
    remember_engine(model, choice.name)  # its model.pt tells how predictions are computed
    held_out, names = dataset.evaluation(), dataset.summary.target_names
    inputs = EngineInputs(model, sources, held_out, plan, layout.virtual_ranks, ranks, config, names)
    return ranks.on_all_ranks(lambda: choice.build(inputs))


def cpu_notices(config: RunConfig, choice: EngineChoice, model: nn.Module, ranks: Ranks) -> list[str]:
    """Say what makes the bits of a run follow the kind of CPU, or keeping them dear. Collective."""
    notices = [*first_weights_notices(config, model), *_fusing_notices(config, choice.name)]
    mixture = describe_mixture(ranks.gather_object(detect_cpu()))
    if mixture is None or choice.same_on_any_cpu:
        return notices
    return [
        *notices,
        f"the ranks are on several kinds of CPU ({mixture}): training.engine={choice.name} promises the same bits on "
        "one kind only; ranks that drift apart end the run, so give it nodes of one kind",
    ]


def _fusing_notices(config: RunConfig, engine: str) -> list[str]:
    if engine != "compiled" or fuses_products(detect_cpu(), config.compute.instruction_set):
        return []
    return [
        f"compute.instruction_set={config.compute.instruction_set}: without fused multiply-add instructions, which are "
        "computed exactly in several: the same results, up to 20 times slower"
    ]


def unused_notices(config: RunConfig, engine: str, model: nn.Module, ranks: Ranks) -> list[str]:
    """Return a line for each setting that has no effect on these devices, with this engine or with this network."""
    notices = []
    if config.training.allow_tf32 and ranks.device.type != "cuda":
        notices.append("training.allow_tf32=true: of no effect, this run is on CPUs")
    if config.compute.instruction_set != "native" and engine != "compiled":
        notices.append(
            f"compute.instruction_set={config.compute.instruction_set}: of no effect, training.engine={engine} is not "
            "built for a CPU"
        )
    if config.ensemble is not None:
        notices.append("ensemble: of no effect in a single run; `mpitrain ensemble` trains its members")
    if config.training.log_gpu_memory and ranks.device.type != "cuda":
        notices.append("training.log_gpu_memory=true: of no effect, this run is on CPUs")
    if config.distributed.sync_batch_norm and ":" in str(config.network.name) and not batch_norm_layers(model):
        notices.append("distributed.sync_batch_norm=true: of no effect, for your network has no batch norm")
    return notices

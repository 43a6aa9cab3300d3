"""The layout of a run: the size of a batch, its microbatches, and the ranks that compute them.

V  microbatches, each a virtual rank's      P  real ranks      B  samples of a batch
"""

from __future__ import annotations

from dataclasses import dataclass

from mpitrain.comm import Ranks, VirtualRanks
from mpitrain.comm.virtual_ranks import (
    MOST_MICROBATCHES,
    MOST_WITH_STATISTICS,
    idle_notice,
    microbatches_of,
    plan_virtual_ranks,
    streams_of,
    uneven_notice,
)
from mpitrain.config import OpenSettings, RunConfig, SampleCount, TrainingSection
from mpitrain.config.advice.defaults import Decided
from mpitrain.data import SampleSource
from mpitrain.data.dataset.linear_fit import MOST_PLACE_SUMS, num_place_sums
from mpitrain.errors import CheckpointError
from mpitrain.train import Checkpoint
from mpitrain.train.checkpoint.compatibility import EXACT_BATCHES_KEY, STREAMS_KEY, global_batch_size
from mpitrain.train.choose_engine import check_strategy


@dataclass(frozen=True)
class RunLayout:
    """Assignment of microbatches to ranks; the same on all ranks except for `virtual_ranks.rank`.

    `global_batch_size` is B or "full". With `semantics=reference` each real rank is one virtual rank.
    """

    virtual_ranks: VirtualRanks
    global_batch_size: int | str
    exact_batches: bool = False
    """True if a step has exactly B samples; False if B is rounded up to microbatches of equal size, as for samples
    streamed from files and in runs of earlier versions."""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayoutRule:
    """What is known of the layout before the samples are counted; the same on all ranks except for `rank`.

    `decides`: whether defaults that depend on the number of samples are resolved here; `grid`: see `SampleCount`.
    """

    config: RunConfig
    kind: str
    world_size: int
    rank: int
    checkpoint: Checkpoint | None
    decides: bool
    grid: tuple[int, int] | None = None

    def virtual_ranks(self, num_usable: int, num_training: int) -> VirtualRanks:
        """Return the owners of the samples; `num_usable` counts held-out ones too. Not collective."""
        return self.layout(num_usable, num_training).virtual_ranks

    def layout(self, num_usable: int, num_training: int) -> RunLayout:
        """Return the layout of a run on these numbers of samples. Not collective."""
        world_size, rank = self.world_size, self.rank
        if self.config.semantics == "reference":  # each real rank is one virtual rank
            return RunLayout(VirtualRanks(world_size, world_size, rank), "full")
        if self.checkpoint is not None:
            return self._resumed(self.checkpoint)
        size = global_batch_size(self._training(num_usable), world_size)
        if self.config.training.virtual_ranks is not None:
            planned, notices = plan_virtual_ranks(self.config.training.virtual_ranks, world_size, rank)
            return RunLayout(planned, size, notices=tuple(notices))
        num_samples = num_training if size == "full" else int(size)
        return self._of_batch(size, num_samples)

    def decided(self, num_usable: int) -> Decided:
        """Return the settings, with defaults that follow from the number of samples."""
        config = self.config
        if self.checkpoint is not None:
            config = config.with_average(self.checkpoint.average)
        return OpenSettings(config).decide(SampleCount(self.kind, num_usable, self.grid))

    def _training(self, num_usable: int) -> TrainingSection:
        return (self.decided(num_usable).config if self.decides else self.config).training

    @property
    def _most_microbatches(self) -> int:
        return MOST_WITH_STATISTICS if self.config.network.may_have_batch_norm else MOST_MICROBATCHES

    def _of_batch(self, size: int | str, num_samples: int) -> RunLayout:
        parts = self.config.training.gradient_accumulation_steps
        number = microbatches_of(num_samples, self.kind, self._most_microbatches, parts)
        planned = VirtualRanks(number, self.world_size, self.rank, streams_of(number))
        notices = (*idle_notice(planned, num_samples, self.kind, self._most_microbatches), *uneven_notice(planned))
        return RunLayout(planned, size, not self.config.data.streaming, notices)

    def _resumed(self, checkpoint: Checkpoint) -> RunLayout:
        settings, number = checkpoint.settings, int(checkpoint.settings["training.virtual_ranks"])
        planned = VirtualRanks(number, self.world_size, self.rank, settings.get(STREAMS_KEY))
        size = settings["training.global_batch_size"]
        in_steps = -1 if size == "full" else int(size)
        idle = idle_notice(planned, in_steps, self.kind, self._most_microbatches) if in_steps > 0 else []
        is_exact = bool(settings.get(EXACT_BATCHES_KEY))
        return RunLayout(planned, size, is_exact, (*idle, *uneven_notice(planned)))


def grid_for_defaults(source: SampleSource) -> tuple[int, int] | None:
    """Return rows and columns of fields that are small enough for regression coefficients at each point, or None."""
    rows, columns = source.grid_shape
    num_sums = num_place_sums(len(source.input_names), len(source.target_names), rows * columns)
    return (rows, columns) if source.kind == "fields" and num_sums <= MOST_PLACE_SUMS else None


def plan_layout(
    config: RunConfig, ranks: Ranks, checkpoint: Checkpoint | None, kind: str, *, decides: bool = False,
    grid: tuple[int, int] | None = None,
) -> LayoutRule:  # fmt: skip
    """Return the layout rule of a new run on samples of `kind`, or of the run of `checkpoint`. Collective.

    Raises, on all ranks, LaunchError if the strategy allows one rank only, and CheckpointError if the checkpoint was
    written with other semantics.
    """
    if config.semantics == "standard":
        ranks.on_all_ranks(lambda: check_strategy(config.distributed.strategy, ranks.world_size))
        ranks.on_all_ranks(lambda: _check_semantics(checkpoint))
    return LayoutRule(config, kind, ranks.world_size, ranks.rank, checkpoint, decides, grid)


def _check_semantics(checkpoint: Checkpoint | None) -> None:
    if checkpoint is not None and checkpoint.settings["semantics"] == "reference":
        raise CheckpointError(
            f"{checkpoint.path}: written with semantics=reference, this run has standard; resume with "
            f"semantics=reference"
        )

"""What members cost: arithmetic, time and memory, estimated before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig
from mpitrain.data.dataset.exchange import open_source_on_root
from mpitrain.data.open_dataset import torch_dtype
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.settings import Selection, selection_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.ensemble.plan.members import EnsemblePlan, Member
from mpitrain.errors import MpitrainError
from mpitrain.models.build import build_model
from mpitrain.models.networks.network import Network
from mpitrain.synthetic.stand_in import SAMPLES_A_TIME
from mpitrain.text_table import aligned

# The compiled step on one core (Xeon with AVX-512): products and sums a second, and what a step costs besides.
_PRODUCTS_A_SECOND = 2e10
_SECONDS_A_STEP = 2e-6
# A weight is multiplied once forward, and twice backward: for the gradient, and for the layer before.
_PRODUCTS_A_WEIGHT = 3
_DEFAULT_BATCH = 64
# An epoch's order of the samples and a member's own view of them, both 64-bit numbers; weights with two moments.
_BYTES_A_SAMPLE, _NUMBERS_A_WEIGHT = 24, 8
_CICE_SIZES = 7, 1
_MEGABYTE = 1e6


@dataclass(frozen=True)
class Estimate:
    """What one member costs: its weights, the samples at most, seconds on one core, bytes of its own."""

    num_weights: int
    num_samples: int
    seconds: float
    own_bytes: int


class Estimator:
    """Estimates the members of one ensemble: opens each source once, builds each network once."""

    def __init__(self, ranks: Ranks, plan: EnsemblePlan) -> None:
        """Know nothing yet."""
        self._ranks, self._is_synthetic = ranks, not plan.config.data.entries
        self._sizes: dict[str, tuple[int, int, int]] = {}
        self._weights: dict[str, int] = {}

    def estimate(self, config: RunConfig) -> Estimate:
        """Return what a member with these settings costs. Collective. Raises the user's errors, on all ranks."""
        training = config.training
        if self._is_synthetic:  # not written yet in a dry run
            num_inputs, num_targets, num_samples = *_CICE_SIZES, config.most_samples or SAMPLES_A_TIME
        else:
            num_inputs, num_targets, num_samples = self._data_sizes(selection_of(config))
        num_weights = self._num_weights(config.network, training.dtype, num_inputs, num_targets)
        size = training.global_batch_size or _DEFAULT_BATCH
        batch = num_samples if size == "full" or training.batch_size == "full" else int(size)
        steps = -(-num_samples // max(batch, 1)) * training.epochs
        products = _PRODUCTS_A_WEIGHT * num_weights * num_samples * training.epochs
        number_bytes = torch_dtype(training.dtype).itemsize
        own_bytes = _BYTES_A_SAMPLE * num_samples + _NUMBERS_A_WEIGHT * number_bytes * num_weights
        seconds = products / _PRODUCTS_A_SECOND + _SECONDS_A_STEP * steps
        return Estimate(num_weights, num_samples, seconds, own_bytes)

    def of_member(self, member: Member) -> Estimate | str:
        """Return what a member costs, or why it cannot be trained: it will fail with that. Collective."""
        if member.config is None:
            return "cannot be trained"
        try:
            return self.estimate(member.config)
        except MpitrainError as error:
            return str(error)

    def _data_sizes(self, selection: Selection) -> tuple[int, int, int]:
        """Return the numbers of inputs, of targets and, at most, of samples. Collective."""
        key = repr(selection)
        if key not in self._sizes:
            source = open_source_on_root(selection, self._ranks)
            self._sizes[key] = len(source.input_names), len(source.target_names), _most_samples(source)
            source.close()
        return self._sizes[key]

    def _num_weights(self, network: Network, dtype: str, num_inputs: int, num_targets: int) -> int:
        key = repr((network, num_inputs, num_targets))
        if key not in self._weights:
            section: Network = network.model_copy(update={"initial_weights": None})
            model = self._ranks.on_all_ranks(
                lambda: build_model(section, num_inputs, num_targets, 0, torch_dtype(dtype))
            )
            self._weights[key] = sum(parameter.numel() for parameter in model.parameters())
        return self._weights[key]


def _most_samples(source: SampleSource) -> int:
    """Return how many samples there are at most: every point of every chunk, or every time of fields."""
    found = sum(_chunk_samples(chunk, source) for chunk in source.chunks)
    return found if source.max_patterns is None else min(found, source.max_patterns)


def _chunk_samples(chunk: SampleChunk, source: SampleSource) -> int:
    times = chunk.time_stop - chunk.time_start
    return times if source.kind == "fields" else times * (chunk.row_stop - chunk.row_start) * source.grid_shape[1]


def costs_of(members: Sequence[Member], estimator: Estimator) -> list[float]:
    """Return each member's seconds, 0 for one that cannot be trained. Collective."""
    found = [estimator.of_member(member) for member in members]
    return [0.0 if isinstance(one, str) else one.seconds for one in found]


def render_dry_run(plan: EnsemblePlan, ranks: Ranks) -> list[str]:
    """Return a table of the members with what they cost, and what all of them cost. Collective."""
    estimator = Estimator(ranks, plan)
    keys = list(dict.fromkeys(key for member in plan.members for key in member.varied))
    rows = [["member", "seed", "fold", *keys, "weights", "samples", "about s", "MB"]]
    seconds = 0.0
    for member in plan.members:
        fixed = [member.name, str(member.seed), "" if member.fold is None else str(member.fold)]
        found = estimator.of_member(member)
        seconds += 0.0 if isinstance(found, str) else found.seconds
        cells = [found, "", "", ""] if isinstance(found, str) else _cells_of(found)
        rows.append([*fixed, *(str(member.varied.get(key, "")) for key in keys), *cells])
    # Said once for all seeds and folds of a setting.
    problems = list({m.setting: f"member {m.name}: {m.problem}" for m in reversed(plan.members) if m.problem}.values())
    total = f"{len(plan.members)} members, about {seconds:.0f} s on one core, {seconds / ranks.world_size:.0f} s here"
    return [*aligned(rows), *problems, f"{total} (samples at most; compiled engine; data once a node besides)"]


def _cells_of(found: Estimate) -> list[str]:
    numbers = [f"{found.num_weights:,}", f"{found.num_samples:,}", f"{found.seconds:.2g}"]
    return [*numbers, f"{found.own_bytes / _MEGABYTE:.2g}"]

"""The cost of members, estimated before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mpitrain.comm import Ranks
from mpitrain.config import RunConfig
from mpitrain.data import SampleSource, Selection, open_source_on_root, selection_of
from mpitrain.ensemble.plan.members import EnsemblePlan, Member
from mpitrain.errors import MpitrainError
from mpitrain.models import Network
from mpitrain.models.build import build_model
from mpitrain.synthetic.stand_in import SAMPLES_A_TIME
from mpitrain.text_table import aligned

_CICE_SIZES = 7, 1


@dataclass(frozen=True)
class Cost:
    """Factors of the cost of one member's training: epochs, samples (at most this many) and weights."""

    epochs: int
    num_samples: int
    num_weights: int

    @property
    def product(self) -> int:
        """Epochs x samples x weights."""
        return self.epochs * self.num_samples * self.num_weights


class Estimator:
    """Estimator of the cost of members: opens each source once, builds each network once."""

    def __init__(self, ranks: Ranks, plan: EnsemblePlan) -> None:
        """Start with empty caches."""
        self._ranks, self._is_synthetic = ranks, not plan.config.data.entries
        self._sizes: dict[str, tuple[int, int, int]] = {}
        self._weights: dict[str, int] = {}

    def of_member(self, member: Member) -> Cost | str:
        """Return the cost of a member, or the reason why it cannot be trained. Collective."""
        if member.config is None:
            return "cannot be trained"
        try:
            return self._cost(member.config)
        except MpitrainError as error:
            return str(error)

    def _cost(self, config: RunConfig) -> Cost:
        if self._is_synthetic:  # not written yet in a dry run
            num_inputs, num_targets, num_samples = *_CICE_SIZES, config.most_samples or SAMPLES_A_TIME
        else:
            num_inputs, num_targets, num_samples = self._data_sizes(selection_of(config))
        num_weights = self._num_weights(config.network, config.training.dtype, num_inputs, num_targets)
        return Cost(config.training.epochs, num_samples, num_weights)

    def _data_sizes(self, selection: Selection) -> tuple[int, int, int]:
        """Return the numbers of inputs and targets, and the largest possible number of samples. Collective."""
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
                lambda: build_model(section, num_inputs, num_targets, 0, getattr(torch, dtype))
            )
            self._weights[key] = sum(parameter.numel() for parameter in model.parameters())
        return self._weights[key]


def _most_samples(source: SampleSource) -> int:
    """Return the largest possible number of samples: all points of all chunks, or all times of fields."""
    sizes = ((one.time_stop - one.time_start, one.row_stop - one.row_start) for one in source.chunks)
    found = sum(times if source.kind == "fields" else times * rows * source.grid_shape[1] for times, rows in sizes)
    return found if source.max_patterns is None else min(found, source.max_patterns)


def longest_first(members: Sequence[Member], estimator: Estimator) -> list[Member]:
    """Return the members by decreasing cost: the last ones to end are then short. Collective."""
    costs = {member.number: estimator.of_member(member) for member in members}
    products = {number: 0 if isinstance(cost, str) else cost.product for number, cost in costs.items()}
    return sorted(members, key=lambda member: (-products[member.number], member.number))


def render_dry_run(plan: EnsemblePlan, ranks: Ranks) -> list[str]:
    """Return a table of the members with their cost. Collective."""
    estimator = Estimator(ranks, plan)
    keys = list(dict.fromkeys(key for member in plan.members for key in member.varied))
    rows = [["member", "seed", "fold", *keys, "epochs", "samples", "weights"]]
    for member in plan.members:
        fixed = [member.name, str(member.seed), "" if member.fold is None else str(member.fold)]
        found = estimator.of_member(member)
        if isinstance(found, str):
            cells = [found, "", ""]
        else:
            cells = [f"{count:,}" for count in (found.epochs, found.num_samples, found.num_weights)]
        rows.append([*fixed, *(str(member.varied.get(key, "")) for key in keys), *cells])
    # One line for all seeds and folds of a setting.
    problems = list({m.setting: f"member {m.name}: {m.problem}" for m in reversed(plan.members) if m.problem}.values())
    return [
        *aligned(rows),
        *problems,
        f"{len(plan.members)} members, started in the order of epochs x samples x weights, the largest first",
    ]

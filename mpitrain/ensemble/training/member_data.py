"""The samples that members train on: read and decoded once a node, held once, however many members share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mpitrain.comm import Ranks
from mpitrain.config import RunConfig
from mpitrain.data import Dataset, SampleSource, open_source_on_root, selection_of
from mpitrain.data.dataset.shared import SharedSamples, share_on_node
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.open_dataset import DataRequest, open_dataset
from mpitrain.ensemble.plan.members import Member
from mpitrain.errors import LaunchError, MpitrainError
from mpitrain.runs.build import data_request
from mpitrain.runs.layout import LayoutRule
from mpitrain.runs.model import check_kind

# Members that follow each other mostly share their samples; a view holds 8 bytes a sample.
_MOST_VIEWS = 4


@dataclass
class MemberData:
    """The sources of all members' samples, by what selects them, and the samples where members can share them.

    `problems` says which cannot be read, and why: members that want them fail, the others go on.
    """

    sources: Mapping[str, SampleSource]
    shared: Mapping[str, SharedSamples]
    problems: Mapping[str, MpitrainError]
    _views: dict[str, Dataset] = field(default_factory=dict)

    def source(self, config: RunConfig, group: Ranks) -> SampleSource:
        """Return the source of a member's samples. Collective. Raises the user's errors, on all ranks."""
        key = selection_key(config)
        group.on_all_ranks(lambda: _raise(self.problems.get(key)))
        source = self.sources[key]
        group.on_all_ranks(lambda: check_kind(config.network, config.training.loss_weights, source))
        return source

    def dataset(self, config: RunConfig, rule: LayoutRule, group: Ranks) -> Dataset:
        """Return the samples of one member, as a run alone would hold them. Collective."""
        key, request = selection_key(config), data_request(config)
        num_points = self.sources[key].num_points
        view_key = repr((key, request.data, rule.layout(num_points, num_points)))
        if request.data.streaming:
            return open_dataset(request, self.sources[key], rule.virtual_ranks, group)
        if view_key not in self._views:
            while len(self._views) >= _MOST_VIEWS:
                del self._views[next(iter(self._views))]
            self._views[view_key] = self._open(request, key, rule, group)
        return self._views[view_key]

    def _open(self, request: DataRequest, key: str, rule: LayoutRule, group: Ranks) -> Dataset:
        if key not in self.shared:
            return open_dataset(request, self.sources[key], rule.virtual_ranks, group)
        split = group.on_root(lambda: plan_split(request.data, self.sources[key]))
        return self.shared[key].dataset(split, rule.virtual_ranks, group)

    def close(self) -> None:
        """Give the shared memory back. Collective over the node."""
        self._views.clear()
        for shared in self.shared.values():
            shared.close()


def selection_key(config: RunConfig) -> str:
    """Return what tells the samples of one member from those of another, before any is held out."""
    return repr((selection_of(config, to_learn=True), config.data.streaming))


def read_for_members(members: Sequence[Member], world: Ranks, node: Ranks) -> MemberData:
    """Open what the members train on, and read it into each node's shared memory where it is points. Collective."""
    wanted = {selection_key(member.config): member.config for member in members if member.config is not None}
    sources: dict[str, SampleSource] = {}
    shared: dict[str, SharedSamples] = {}
    problems: dict[str, MpitrainError] = {}
    for key, config in wanted.items():
        try:
            sources[key] = source = open_source_on_root(selection_of(config, to_learn=True), world)
            if source.kind == "points" and not config.data.streaming and world.device.type == "cpu":
                found = _share(config.training.dtype, source, world, node)
                shared |= {} if found is None else {key: found}
        except MpitrainError as error:
            problems[key] = error
    return MemberData(sources, shared, problems)


def _share(dtype: str, source: SampleSource, world: Ranks, node: Ranks) -> SharedSamples | None:
    """Return the samples in memory of the node; None where a node lacks it: then each group holds its own. Collective.

    Raises DataError, on all ranks of the world.
    """
    found, failure = None, None
    try:
        found = share_on_node(source, node, dtype)
    except MpitrainError as error:
        failure = error
    failures = [other for other in world.gather_object(failure) if other is not None]
    if any(not isinstance(other, LaunchError) for other in failures):
        raise next(other for other in failures if not isinstance(other, LaunchError))
    if failures:
        world.note(str(failures[0]))
        return None
    return found


def _raise(error: MpitrainError | None) -> None:
    if error is not None:
        raise type(error)(*error.args)

"""The samples that members train on: read, decoded and stored once per node for all members that share them."""

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

# Successive members usually share their samples; a view takes 8 bytes per sample.
_MOST_VIEWS = 4


@dataclass
class MemberData:
    """The sources of all members' samples, by `selection_key`, and the samples that members can share.

    `problems` are the errors of sources that cannot be read: members that use them fail, the others are trained.
    """

    sources: Mapping[str, SampleSource]
    shared: Mapping[str, SharedSamples]
    problems: Mapping[str, MpitrainError]
    _views: dict[str, Dataset] = field(default_factory=dict)

    def source(self, config: RunConfig, group: Ranks) -> SampleSource:
        """Return the source of a member's samples. Collective. Raises MpitrainError on all ranks of the group."""
        key = selection_key(config)
        group.on_all_ranks(lambda: _raise(self.problems.get(key)))
        source = self.sources[key]
        group.on_all_ranks(lambda: check_kind(config.network, config.training.loss_weights, source))
        return source

    def dataset(self, config: RunConfig, rule: LayoutRule, group: Ranks) -> Dataset:
        """Return the samples of one member, as a single run would store them. Collective."""
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
        """Release the shared memory. Collective over the node."""
        self._views.clear()
        for shared in self.shared.values():
            shared.close()


def selection_key(config: RunConfig) -> str:
    """Return a key that is equal for members with the same samples, before any are held out."""
    return repr((selection_of(config, to_learn=True), config.data.streaming))


def read_for_members(members: Sequence[Member], world: Ranks, node: Ranks) -> MemberData:
    """Open the data of the members, and read points into the shared memory of each node. Collective."""
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
    """Return the samples in the node's shared memory; None if a node lacks it: each group then stores its own.

    Collective. Raises DataError on all ranks.
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

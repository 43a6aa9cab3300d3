"""The samples that members train on: read and decoded once a node, held once, however many members share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.config import RunConfig
from mpitrain.data.dataset.dataset import Dataset
from mpitrain.data.dataset.exchange import open_source_on_root
from mpitrain.data.dataset.shared import SharedSamples, share_on_node
from mpitrain.data.dataset.split import plan_split, split_rule
from mpitrain.data.open_dataset import open_dataset, torch_dtype
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.ensemble.plan.members import Member
from mpitrain.errors import LaunchError, MpitrainError
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
        group.on_all_ranks(lambda: check_kind(config, source))
        return source

    def dataset(self, config: RunConfig, virtual_ranks: VirtualRanks, group: Ranks) -> Dataset:
        """Return the samples of one member, as a run alone would hold them. Collective."""
        key = selection_key(config)
        view_key = repr((key, split_rule(config), virtual_ranks, config.data))
        if config.data.streaming:
            return open_dataset(config, self.sources[key], virtual_ranks, group)
        if view_key not in self._views:
            while len(self._views) >= _MOST_VIEWS:
                del self._views[next(iter(self._views))]
            self._views[view_key] = self._open(config, key, virtual_ranks, group)
        return self._views[view_key]

    def _open(self, config: RunConfig, key: str, virtual_ranks: VirtualRanks, group: Ranks) -> Dataset:
        if key not in self.shared:
            return open_dataset(config, self.sources[key], virtual_ranks, group)
        split = group.on_root(lambda: plan_split(config, self.sources[key]))
        return self.shared[key].dataset(split, virtual_ranks, group)

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
                found = _share(config, source, world, node)
                shared |= {} if found is None else {key: found}
        except MpitrainError as error:
            problems[key] = error
    return MemberData(sources, shared, problems)


def _share(config: RunConfig, source: SampleSource, world: Ranks, node: Ranks) -> SharedSamples | None:
    """Return the samples in memory of the node; None where a node lacks it: then each group holds its own. Collective.

    Raises DataError, on all ranks of the world.
    """
    found, failure = None, None
    try:
        found = share_on_node(source, node, torch_dtype(config))
    except MpitrainError as error:
        failure = error
    failures = [other for other in world.gather_object(failure) if other is not None]
    if any(not isinstance(other, LaunchError) for other in failures):
        raise next(other for other in failures if not isinstance(other, LaunchError))
    if failures:
        world.say(f"note: {failures[0]}", error=True)
        return None
    return found


def _raise(error: MpitrainError | None) -> None:
    if error is not None:
        raise type(error)(str(error))

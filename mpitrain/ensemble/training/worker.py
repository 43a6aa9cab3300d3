"""The training of all members by all ranks: each group trains one after the other and stores the outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.comm import Ranks
from mpitrain.comm.groups import split_into_groups, split_into_nodes
from mpitrain.comm.tensors import started_tensors
from mpitrain.ensemble.outcome import Ended, Known, LoneFailures, Outcome, Results, write_outcome
from mpitrain.ensemble.plan.members import EnsemblePlan, Member, describe_plan, num_groups_for
from mpitrain.ensemble.training.failures import describe, is_in_collective, may_go_on
from mpitrain.ensemble.training.hand_out import MemberQueue, Progress, open_member_queue
from mpitrain.ensemble.training.member_data import read_for_members
from mpitrain.ensemble.training.member_fit import MemberTools
from mpitrain.ensemble.training.member_records import log_outcome, open_records
from mpitrain.ensemble.training.member_run import train_member
from mpitrain.errors import StoppedError, TrainingError
from mpitrain.train import ClaimedFolder, RunFolder, remember_code_of, trusts_code_of
from mpitrain.train.stop_request import listen_for_stop


def train_members(
    ranks: Ranks, plan: EnsemblePlan, todo: Sequence[Member], known: Known, claim: ClaimedFolder
) -> Ended:  # fmt: skip
    """Train the members `todo`, in this order, by groups of ranks; return the outcomes of all members. Collective.

    `known`: the outcomes of the others; `claim`: the claim of this launch on the ensemble's folder.
    """
    num_groups = num_groups_for(plan, todo, ranks.world_size)
    ranks.say(describe_plan(plan, num_groups, ranks.world_size))
    node, group = split_into_nodes(ranks), split_into_groups(ranks, num_groups)
    # Ranks that have nothing left to do sleep while they wait, so that the others can use their cores.
    ranks.cpu.sleep_while_waiting()
    data = read_for_members(todo, ranks, node)
    weights = [member.config.model.initial_weights for member in todo if member.config is not None]
    records = open_records(ranks, list(data.sources.values()), weights, plan.config.output.hash_data, claim.run)
    with listen_for_stop() as own_stop:
        hand_out = open_member_queue(ranks, todo, known, own_stop)
        with started_tensors(group, plan.config.distributed.timeout_s, needs_torch=False):
            tools = MemberTools(group, data, records, hand_out.stop_request, plan.section.save_interval_s, claim)
            _Worker(plan, hand_out, tools, Progress(ranks, hand_out.claims, len(todo))).work()
        group.watch.unfollow()  # other groups may train for hours
        ranks.barrier()
        signal_name = next(filter(None, ranks.gather_object(hand_out.stop_request.signal_name)), None)
    data.close()
    results = ranks.on_root(hand_out.all_results)
    return Ended(results, signal_name)


def remember_members(plan: EnsemblePlan, members: Sequence[Member], results: Results) -> None:
    """Note that trained members are this user's own, so that their code is trusted, if the ensemble's settings are."""
    done = [one for one in members if one.number in results and results[one.number].status == "done"]
    names = {name for one in done if one.config is not None for name in one.config.code_names.items()}
    if names and trusts_code_of(RunFolder(plan.folder).config, False):
        folders = [RunFolder(plan.folder_of(one), plan.config.output.model_file) for one in done]
        remember_code_of(names, [file for folder in folders for file in (folder.config, folder.model)])


@dataclass
class _Worker:
    """Work of one group: it trains one member after the other until none is left."""

    plan: EnsemblePlan
    hand_out: MemberQueue
    tools: MemberTools
    progress: Progress

    def work(self) -> None:
        """Train members until none can be claimed. Collective over the group."""
        group = self.tools.group
        while (member := self.hand_out.next_member(group)) is not None:
            outcome = self._outcome_of(member)
            if outcome is None:  # stopped: --resume continues from its checkpoint
                return
            group.on_root(lambda member=member, outcome=outcome: self._keep(member, outcome))  # type: ignore[misc]
            self.progress.count(group)

    def _keep(self, member: Member, outcome: Outcome) -> None:
        folder = self.plan.folder_of(member)
        remember_members(self.plan, [member], {member.number: outcome})  # immediately: the launch may be killed
        write_outcome(folder, outcome)
        log_outcome(folder, self.tools.group, outcome)
        self.hand_out.report(outcome)

    def _outcome_of(self, member: Member) -> Outcome | None:
        """Train one member; return its outcome, also if it fails; None if stopped. Collective over the group."""
        if member.config is None:
            return Outcome(member.number, "failed", message=member.problem)
        lone_failures = LoneFailures(self.plan.folder_of(member))
        try:
            return train_member(member, member.config, self.tools)
        except StoppedError:
            return None
        except TrainingError as error:
            self._check_all_know(error, member, lone_failures)
            return Outcome(member.number, "diverged", message=str(error))
        except Exception as error:  # a user's own network may raise any exception
            self._check_all_know(error, member, lone_failures)
            return Outcome(member.number, "failed", message=describe(error))

    def _check_all_know(self, error: Exception, member: Member, lone_failures: LoneFailures) -> None:
        """Raise `error` again if other ranks of the group may wait for this one: then all ranks must end."""
        if not may_go_on(self.tools.group, self.hand_out.claims, member.name, error):
            if not is_in_collective(self.tools.group):  # otherwise lost ranks are the cause, not the member
                lone_failures.note(describe(error))
            raise error

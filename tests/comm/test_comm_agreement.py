"""All ranks fail together, with ranks played by one process; launched ranks are in test_comm_collectives.py."""

import pytest
from played_ranks import on_played_ranks

from mpitrain.comm.agreement import is_agreed, mark_agreed, on_all_ranks, on_root, on_two_ranks
from mpitrain.errors import CheckpointError, DataError, TrainingError


class PlayedRanks:
    """A communicator whose other ranks report what the test says."""

    def __init__(self, *others):
        self.others, self.rank, self.size = others, 0, len(others) + 1

    def all_gather_object(self, value):
        return [value, *self.others]


def fail(error):
    raise error


def test_without_a_failure_each_rank_has_its_own_result():
    assert on_all_ranks(PlayedRanks(None, None), lambda: 7) == 7


def test_the_first_failing_ranks_error_is_raised_where_nothing_failed():
    ranks = PlayedRanks(None, (CheckpointError, "bad file", "n2"), (DataError, "later", "n3"))
    with pytest.raises(CheckpointError) as raised:
        on_all_ranks(ranks, lambda: 7)
    assert str(raised.value) == "rank 2 on n2 (2 of 4 ranks): bad file"
    assert is_agreed(raised.value)


def test_an_error_of_all_ranks_names_none():
    with pytest.raises(DataError) as raised:
        on_all_ranks(PlayedRanks((DataError, "no file", "n2")), lambda: fail(DataError("no file")))
    assert str(raised.value) == "no file"


def test_a_bug_is_not_swallowed_and_not_agreed():
    with pytest.raises(ZeroDivisionError) as raised:
        on_all_ranks(PlayedRanks(None), lambda: 1 // 0)
    assert not is_agreed(raised.value)


def test_only_marked_errors_are_agreed():
    assert not is_agreed(TrainingError("loss"))
    assert is_agreed(mark_agreed(TrainingError("loss")))


def test_what_the_root_does_is_everybodys_result():
    done = []
    results = on_played_ranks(3, lambda comm: on_root(comm, lambda: done.append(comm.rank) or ("from", comm.rank)))
    assert results == [("from", 0)] * 3
    assert done == [0]


def test_the_roots_error_is_raised_on_every_rank():
    def body(communicator):
        with pytest.raises(CheckpointError, match=r"^no space$") as raised:
            on_root(communicator, lambda: fail(CheckpointError("no space")))
        return is_agreed(raised.value)

    assert on_played_ranks(3, body) == [True] * 3


@pytest.mark.parametrize(("num_ranks", "second", "ran_by"), [(3, 2, 2), (3, None, 0), (1, None, 0)])
def test_two_ranks_act_at_once_and_all_have_both_results(num_ranks, second, ran_by):
    def act(comm):
        return on_two_ranks(comm, comm.rank == second, lambda: ("first", comm.rank), lambda: ("second", comm.rank))

    assert on_played_ranks(num_ranks, act) == [(("first", 0), ("second", ran_by))] * num_ranks


@pytest.mark.parametrize("failing", ["first", "second"])
def test_an_error_of_either_of_two_ranks_is_everybodys(failing):
    def act(comm):
        def action(name):
            return lambda: fail(DataError(name)) if name == failing else name

        try:
            return on_two_ranks(comm, comm.rank == 1, action("first"), action("second"))
        except DataError as error:
            return str(error), is_agreed(error)

    assert on_played_ranks(3, act) == [(failing, True)] * 3

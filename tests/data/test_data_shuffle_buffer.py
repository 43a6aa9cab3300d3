"""The shuffle buffer: which sample leaves when, and how well that shuffles."""

import numpy as np
import pytest

from mpitrain.data.streaming.shuffle_buffer import BufferOrder

pytestmark = pytest.mark.fast


def order_of(order):
    """The places in the stream in the order in which they leave, and the buffer's content before each round."""
    places, out, contents = np.arange(order.num_slots), [], []
    for number in range(order.num_full_rounds + 1):
        contents.append(places.copy())
        slots = order.drawn(number)
        out.append(places[slots])
        places[slots] = -1
        if number < order.num_full_rounds:
            new = order.refilled(number)
            places[slots[: len(new)]] = np.arange(new.start, new.stop)
    return np.concatenate(out), contents


@pytest.mark.parametrize("count", [0, 1, 7, 16, 17, 24, 25, 100, 1000])
@pytest.mark.parametrize("keys", [(1, 2), None])
def test_every_sample_leaves_once(count, keys):
    order = BufferOrder(count, 8, keys)
    left, contents = order_of(order)
    assert sorted(left) == list(range(count))
    if keys is None:
        assert left.tolist() == list(range(count))
    for number, content in enumerate(contents):
        np.testing.assert_array_equal(order.content(number), content)


def test_how_well_it_shuffles():
    count, h = 64_000, 500
    left, _ = order_of(BufferOrder(count, h, (3,)))
    when = np.empty(count, dtype=np.int64)
    when[left] = np.arange(count)
    inside = slice(4 * h, count - 4 * h)
    # A sample waits as long as in a buffer of 2h slots that is drawn from one by one.
    waited = (when - np.arange(count))[inside] + 2 * h
    assert abs(waited.mean() / (2 * h) - 1) < 0.02
    assert abs(waited.std() / (1.44 * h) - 1) < 0.05  # numbers of rounds have the deviation 2 ** 0.5
    for apart, share in ((1, 1 / 2), (h, 1 / 4), (2 * h, 1 / 8), (3 * h, 1 / 16)):
        swapped = float(np.mean(when[:-apart][inside] > when[apart:][inside]))
        assert abs(swapped - share) < 0.01 + 0.002 * (apart == 1), apart
    # Inside a round the order has no memory of the stream.
    rounds = left[: count // h * h].reshape(-1, h)[4:-4]
    ranks = rounds.argsort(axis=1).argsort(axis=1)
    correlation = [np.corrcoef(ranks[k], np.arange(h))[0, 1] for k in range(len(ranks))]
    assert abs(np.mean(correlation)) < 4 / np.sqrt(h * len(ranks))
    neighbours = np.abs(np.diff(rounds, axis=1))
    assert np.median(neighbours) > h / 2


def test_two_epochs_and_two_virtual_ranks_have_their_own_order():
    orders = {tuple(order_of(BufferOrder(300, 50, keys))[0]) for keys in ((0, 4, 0, 0), (0, 4, 1, 0), (0, 4, 0, 1))}
    assert len(orders) == 3

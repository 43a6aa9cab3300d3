"""The random numbers are fixed for ever: C++ writes them again, and old runs must stay repeatable."""

import numpy as np
import pytest

from mpitrain.data.random_streams import keyed_permutation, keyed_uniform, keyed_words

pytestmark = pytest.mark.fast

WORD = 2**64 - 1

# Of keys (0, 1), (0, 1) and (0, 2, 0, 0): validation choice of seed 0, and the first shuffle of its virtual rank 0.
GOLDEN_WORDS = [4964578127960768432, 12049418925942065841, 10665565594135713660]
GOLDEN_UNIFORM = [0.2691303195904541, 0.653200308834717, 0.5781814693974294]
GOLDEN_PERMUTATION = [6, 1, 10, 0, 2, 7, 5, 11, 3, 8, 9, 4]


def splitmix64(state, count):
    """The generator as its authors publish it, in whole numbers."""
    words = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & WORD
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        words.append(z ^ (z >> 31))
    return words


def test_words_are_splitmix64s_published_ones():
    seeded_with_0 = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert keyed_words((), 4).tolist() == seeded_with_0 == splitmix64(0, 4)
    # One key: the stream that starts at the first word of the stream seeded with it.
    assert splitmix64(1234567, 1) == [6457827717110365317]
    assert keyed_words((1234567,), 5).tolist() == splitmix64(6457827717110365317, 5)


@pytest.mark.parametrize("keys", [(0,), (0, 1), (1, 0), (3, 2, 0, 5), (2**63 + 11, 2**64 - 1), (7,) * 9])
def test_each_key_is_mixed_into_the_state(keys):
    state = 0
    for key in keys:
        state = splitmix64(state ^ key, 1)[0]
    assert keyed_words(keys, 20).tolist() == splitmix64(state, 20)


def test_numbers_that_nobody_may_change():
    assert keyed_words((0, 1), 3).tolist() == GOLDEN_WORDS
    assert keyed_uniform((0, 1), 3).tolist() == GOLDEN_UNIFORM
    assert keyed_permutation((0, 2, 0, 0), 12).tolist() == GOLDEN_PERMUTATION


@pytest.mark.parametrize("count", [0, 1, 2, 999])
def test_word_i_does_not_depend_on_the_count(count):
    np.testing.assert_array_equal(keyed_words((4, 2), count), keyed_words((4, 2), 1000)[:count])
    np.testing.assert_array_equal(keyed_uniform((4, 2), count), keyed_uniform((4, 2), 1000)[:count])


def test_uniform_numbers_fill_the_half_open_interval():
    numbers = keyed_uniform((9,), 100_000)
    assert numbers.dtype == np.float64
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    # Mean and variance of the uniform distribution within five standard errors.
    assert abs(numbers.mean() - 0.5) < 5 * (1 / 12) ** 0.5 / 100_000**0.5
    assert abs(numbers.var() - 1 / 12) < 5 * (1 / 180) ** 0.5 / 100_000**0.5


@pytest.mark.parametrize("count", [0, 1, 2, 17, 1000])
def test_permutations_hold_every_number_once(count):
    permutation = keyed_permutation((1, 2, 3), count)
    assert permutation.dtype == np.int64
    assert sorted(permutation.tolist()) == list(range(count))


def test_a_sort_that_an_emulated_cpu_gets_wrong_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, sort = keyed_permutation((1, 2, 3), 500), np.argsort

    def wrong_by_default(words: np.ndarray, kind: str | None = None) -> np.ndarray:
        order = sort(words, kind=kind)
        if kind is None:
            order[7] = order[8]  # one number twice, one not at all
        return order

    monkeypatch.setattr(np, "argsort", wrong_by_default)
    assert keyed_permutation((1, 2, 3), 500).tolist() == expected.tolist()


def test_other_keys_give_other_permutations():
    keys = [(0, 2, 0, 0), (1, 2, 0, 0), (0, 2, 1, 0), (0, 2, 0, 1), (2, 0, 0, 0), (0, 2, 0)]
    assert len({tuple(keyed_permutation(key, 50)) for key in keys}) == len(keys)

"""What each rank trains on, with ranks played by threads."""

import numpy as np
import pytest
import torch
from played_ranks import on_played_ranks, played_ranks_of
from tensors_of_data import as_tensors, numpy_type

from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.data.dataset.exchange import take_share
from mpitrain.data.dataset.in_memory import distribute
from mpitrain.data.dataset.reference import share_out_as_reference
from mpitrain.data.dataset.split_rule import SplitRule, held_out_flags
from mpitrain.data.samples import Samples
from mpitrain.errors import DataError

FLOAT32, FLOAT64 = torch.float32, torch.float64
V = 8


def make_samples(num_samples=203, **columns):
    """Samples of three features a, b, c and a target; `columns` replaces some."""
    generator = np.random.default_rng(7)
    inputs = generator.normal([0, 30, -10], [1, 2, 0.1], size=(num_samples, 3)).astype(np.float32)
    targets = generator.random(num_samples).astype(np.float32)
    for position, name in enumerate("abc"):
        inputs[:, position] = columns.get(name, inputs[:, position])
    # Samples are some of the grid's points, at uneven distances.
    grid_index = np.cumsum(generator.integers(1, 6, num_samples))
    return Samples(inputs, columns.get("target", targets)[:, None], grid_index, ("a", "b", "c"))


def split_of_samples():
    """Positions of the training and the validation samples of `make_samples`, as `shared_out` splits them."""
    flags = held_out_flags(0, 203, SplitRule(0.0, 0.2, 3))
    return np.flatnonzero(~flags), np.flatnonzero(flags)


def shared_out(samples, num_ranks=1, split=0.2, seed=3, dtype=FLOAT32):
    def body(communicator):
        plan = VirtualRanks(V, num_ranks, communicator.rank)
        ranks = played_ranks_of(communicator)
        shared = distribute(take_share(samples, ranks), ranks, plan, SplitRule(0.0, split, seed), numpy_type(dtype))
        return as_tensors(shared)

    return on_played_ranks(num_ranks, body)


def as_reference(samples, num_ranks=1, dtype=FLOAT32):
    def body(communicator):
        ranks = played_ranks_of(communicator)
        return share_out_as_reference(take_share(samples, ranks), ranks, dtype)

    return on_played_ranks(num_ranks, body)


def test_virtual_ranks_hold_their_samples_in_file_order():
    samples = make_samples()
    training, validation = split_of_samples()
    (data,) = shared_out(samples)
    assert (data.summary.num_training_samples, data.summary.num_validation_samples) == (len(training), len(validation))
    assert data.summary.num_dropped_samples == 0
    for shares, positions in ((data.training, training), (data.validation, validation)):
        assert [own.virtual_rank for own in shares] == list(range(V))
        for own in shares:
            mine = positions[own.virtual_rank :: V]
            np.testing.assert_array_equal(own.inputs.numpy(), samples.inputs[mine])
            np.testing.assert_array_equal(own.targets.numpy(), samples.targets[mine])


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_nothing_but_the_owner_depends_on_the_number_of_ranks(num_ranks, dtype):
    samples = make_samples(c=np.float32(4))
    (alone,) = shared_out(samples, dtype=dtype)
    together = shared_out(samples, num_ranks, dtype=dtype)
    for kind in ("training", "validation"):
        joined = [own for data in together for own in getattr(data, kind)]
        for own, expected in zip(joined, getattr(alone, kind), strict=True):
            assert own.virtual_rank == expected.virtual_rank
            assert torch.equal(own.inputs, expected.inputs)
            assert torch.equal(own.targets, expected.targets)
            assert own.inputs.dtype == dtype
    for data in together:
        assert torch.equal(data.summary.normalization.mean, alone.summary.normalization.mean)
        assert torch.equal(data.summary.normalization.std, alone.summary.normalization.std)
        assert data.summary.target_mean == alone.summary.target_mean
        assert data.summary.constant_features == ("c",)
        assert (data.summary.num_training_samples, data.summary.num_dropped_samples) == (
            alone.summary.num_training_samples,
            0,
        )


def test_statistics_are_over_the_training_samples_alone():
    samples = make_samples()
    training, _ = split_of_samples()
    normalization = shared_out(samples, dtype=FLOAT64)[0].summary.normalization
    rows = samples.inputs[training].astype(np.float64)
    np.testing.assert_allclose(normalization.mean, rows.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(normalization.std, rows.std(axis=0), rtol=1e-12)
    assert not np.allclose(normalization.mean, samples.inputs.mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -273.15, 1e20])
def test_a_constant_feature_is_centred_and_not_scaled(value):
    (data,) = shared_out(make_samples(b=np.float32(value)))
    assert data.summary.constant_features == ("b",)
    assert data.summary.normalization.std[1] == 1
    assert abs(data.summary.normalization.mean[1] - value) <= 2e-7 * abs(value)
    assert (data.summary.normalization.std[[0, 2]] != 1).all()


def test_a_nearly_constant_feature_is_scaled():
    column = np.full(203, 5, dtype=np.float32)
    column[split_of_samples()[0][10]] = np.nextafter(np.float32(5), np.float32(6))
    (data,) = shared_out(make_samples(a=column))
    assert data.summary.constant_features == ()
    assert 0 < data.summary.normalization.std[0] < 1e-6


def test_unusable_samples_are_dropped_and_counted_before_the_split():
    clean = make_samples()
    broken = make_samples()
    for position, (row, value) in {0: (4, np.nan), 1: (50, np.inf), 2: (51, -np.inf)}.items():
        broken.inputs[row, position] = value
    broken.targets[202] = np.nan
    kept = [row for row in range(203) if row not in (4, 50, 51, 202)]
    (data,) = shared_out(broken)
    (expected,) = shared_out(clean.take(np.array(kept)))
    assert data.summary.num_dropped_samples == 4
    assert data.summary.num_training_samples + data.summary.num_validation_samples == 199
    for own, wanted in zip(data.training, expected.training, strict=True):
        assert torch.equal(own.inputs, wanted.inputs)
    assert torch.equal(data.summary.normalization.std, expected.summary.normalization.std)


def test_what_a_field_has_not_measured_is_the_mean_of_its_input():
    inputs = np.array([[1000, np.nan, 1010, 1020], [990, 1010, 1030, np.nan]], np.float32).reshape(2, 1, 2, 2)
    samples = Samples(inputs, np.ones((2, 1, 2, 2), np.float32), np.arange(2), ("pressure",))
    (data,) = shared_out(samples, split=0.0)
    found = np.concatenate([own.inputs.numpy() for own in data.training])
    assert found.reshape(2, 4).tolist() == [[1000, 1010, 1010, 1020], [990, 1010, 1030, 1010]]


def test_virtual_ranks_without_samples_work():
    data = shared_out(make_samples(3), num_ranks=8, split=0.0)
    assert [len(own.targets) for part in data for own in part.training] == [1, 1, 1, 0, 0, 0, 0, 0]
    assert all(torch.isfinite(part.summary.normalization.mean).all() for part in data)


def test_nothing_left_to_train_on_is_said():
    samples = make_samples(5, a=np.full(5, np.nan, dtype=np.float32))
    with pytest.raises(DataError, match="5 samples selected, 5 dropped as NaN or fill value: none is left to train on"):
        shared_out(samples, num_ranks=2)


# -------------------------------------------------------------------------------------------- reference


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_reference_ranks_are_cut_to_the_smallest(num_ranks):
    samples = make_samples()
    parts = as_reference(samples, num_ranks)
    owned = [samples.grid_index[samples.grid_index % num_ranks == rank] for rank in range(num_ranks)]
    n = min(len(own) for own in owned)
    assert [part.summary.num_training_samples for part in parts] == [n * num_ranks] * num_ranks
    for part, own in zip(parts, owned, strict=True):
        rows = np.searchsorted(samples.grid_index, own[:n])
        np.testing.assert_array_equal(part.inputs.numpy(), samples.inputs[rows])
        np.testing.assert_array_equal(part.targets.numpy(), samples.targets[rows])


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_reference_statistics_are_the_one_pass_formula(num_ranks):
    # Small whole numbers: their sums are exact in float32 in any order, so the formula alone decides the bits.
    generator = np.random.default_rng(3)
    samples = make_samples(60)
    samples.inputs[:] = generator.integers(-20, 20, size=(60, 3))
    samples = Samples(samples.inputs, samples.targets, np.arange(60), samples.input_names)
    rows, total = samples.inputs, np.float32(60)
    mean = rows.sum(axis=0) / total
    # torch's square root, as the original program takes it: on some CPUs it is not the correctly rounded one.
    std = torch.sqrt(torch.from_numpy((rows**2).sum(axis=0) / total - mean**2)).numpy()
    assert mean.dtype == std.dtype == np.float32
    for part in as_reference(samples, num_ranks):
        np.testing.assert_array_equal(part.summary.normalization.mean.numpy(), mean)
        np.testing.assert_array_equal(part.summary.normalization.std.numpy(), std)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_reference_refuses_what_is_no_measurement(value):
    column = np.ones(203, dtype=np.float32)
    column[9] = value
    with pytest.raises(DataError, match="feature 'b' holds a NaN or a fill value"):
        as_reference(make_samples(b=column), 2)
    with pytest.raises(DataError, match="feature 'aice_h' holds a NaN or a fill value"):
        as_reference(make_samples(target=column), 2)


def test_reference_refuses_a_feature_without_spread():
    with pytest.raises(DataError, match=r"feature 'b' has standard deviation 0.0 .*use semantics=standard"):
        as_reference(make_samples(b=np.float32(2)), 2)
    # Sums that float32 holds exactly, whose quotients round to a variance of -1/32: its root is NaN.
    column = np.full(31, 565, dtype=np.float32)
    column[7] = 566
    assert shared_out(make_samples(31, c=column))[0].summary.normalization.std[2] > 0, (
        "standard semantics can train on it"
    )
    with pytest.raises(DataError, match="feature 'c' has standard deviation nan"):
        as_reference(make_samples(31, c=column))


def test_reference_refuses_a_rank_without_samples():
    samples = make_samples(6).take(np.arange(6))
    on_even_points = Samples(samples.inputs, samples.targets, np.arange(6) * 2, samples.input_names)
    with pytest.raises(DataError, match="one of 2 ranks has none of the 6 samples; use fewer ranks"):
        as_reference(on_even_points, 2)

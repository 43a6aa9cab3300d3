"""Every collective against closed forms in rank and size, in real launches; see collectives_program.py."""

from pathlib import Path

import numpy as np
import pytest
from conftest import launch
from order_sensitive_rows import order_sensitive_rows, tree_sum

PROGRAM = Path(__file__).parent / "collectives_program.py"
RANK_COUNTS = [1, 3, *(pytest.param(count, marks=pytest.mark.lab) for count in (2, 4, 8))]
CARRIERS = ["mpi", "mpi4py group", "gloo"]
VERBS = [
    "all_reduce",
    "all_gather",
    "all_to_all_rows",
    "exchange",
    "broadcast",
    "numpy",
    "objects",
    "together",
    "reducers",
]
GROUP = [
    "all_reduce", "half_precision", "compressed_gradients", "finished_work", "refusals",
    "reduce", "broadcast", "gathers", "scatters", "all_to_all", "point_to_point", "objects",
    "subgroups", "data_parallel",
]  # fmt: skip
MPI_ALONE = [
    "refusals", "rows_in_rounds", "half_precision", "width_on_the_wire", "node_shared", "shared_memory_room",
]  # fmt: skip
CHECKS = {
    *(f"mpi check_{name}" for name in MPI_ALONE),
    "gloo no shared memory",
    *(f"{carrier} {verb}" for carrier in CARRIERS for verb in VERBS),
    *(f"group {c}" for c in GROUP),
}


@pytest.fixture(scope="module", params=RANK_COUNTS, ids=lambda count: f"{count} ranks")
def finished(request, tmp_path_factory):
    """The program's end and its results, for one number of ranks."""
    results = tmp_path_factory.mktemp(f"collectives-{request.param}")
    done = launch(["-m", "mpi4py", str(PROGRAM), str(results)], request.param)
    return done, results


def test_every_collective_gives_its_closed_form(finished):
    done, results = finished
    assert done.returncode == 0, done.stderr[-3000:]
    passed = (results / "passed.txt").read_text().splitlines()
    assert set(passed) == CHECKS
    assert len(passed) == len(CHECKS)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_tree_gives_the_same_bits_on_any_number_of_ranks(finished, carrier):
    total = np.load(finished[1] / f"{carrier}-fixed.npy")
    assert total.dtype == np.float32
    np.testing.assert_array_equal(total.view(np.uint32), tree_sum(order_sensitive_rows()).view(np.uint32))


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_library_adds_the_same_numbers_to_rounding(finished, carrier):
    rows = order_sensitive_rows().astype(np.float64)
    total = np.load(finished[1] / f"{carrier}-any.npy")
    # Seven additions of float32 numbers: each errs by at most half a unit in the last place of a partial sum.
    bound = 7 * 2.0**-24 * np.abs(rows).sum(axis=0)
    assert (np.abs(total - rows.sum(axis=0)) <= bound).all()

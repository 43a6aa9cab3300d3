"""The sums of ranks on several nodes: inside the kernel's call as on one node, and with the bits of one rank.

One machine plays the nodes: MPICH by a variable of its own; Open MPI, and layouts that the variable cannot make, by
what the ranks are told of their nodes.
"""

import json
import os

import pytest
from conftest import TESTS, launch

OPENMPI = os.environ.get("MPITRAIN_OPENMPI_PYTHON")
PROGRAM = str(TESTS / "lab" / "train" / "nodes_sum_program.py")
# With more ranks than cores MPI's own waits would take the cores from those that work.
YIELDING = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
CLIQUES, BLOCKS = "MPIR_CVAR_NUM_CLIQUES", "MPIR_CVAR_CLIQUES_BY_BLOCK"
# By name: the number of ranks; the node of each, or what makes MPICH believe in nodes; whether the sums double.
LAYOUTS = {
    "2 ranks, 2 nodes of MPICH": (2, {CLIQUES: "2"}, True),
    "3 ranks in turns on 2 nodes of MPICH": (3, {CLIQUES: "2"}, False),
    "4 ranks in turns on 2 nodes of MPICH": (4, {CLIQUES: "2"}, False),
    "4 ranks on 2 nodes of MPICH": (4, {CLIQUES: "2", BLOCKS: "1"}, True),
    "4 ranks on 3 nodes of MPICH": (4, {CLIQUES: "3", BLOCKS: "1"}, False),
    "4 ranks on 4 nodes of MPICH": (4, {CLIQUES: "4"}, True),
    "2 + 1": (3, "0,0,1", True),  # of four microbatches each node has a half
    "3 + 1": (4, "0,0,0,1", False),
    "1 + 3": (4, "0,1,1,1", False),
    "2 + 2 of Open MPI": (4, "0,0,1,1", True),
    "3 + 1 of Open MPI": (4, "0,0,0,1", False),
    "1 + 1 of Open MPI": (2, "0,1", True),
}
SAME = ("weights", "optimizer", "losses", "ends")


def facts_of(folder, num_ranks, nodes=None, python=None):
    folder.mkdir()
    environ = {**YIELDING, **(nodes if isinstance(nodes, dict) else {})}
    options = {"environ": environ} if python is None else {"environ": environ, "python": python}
    words = [nodes] if isinstance(nodes, str) else []
    done = launch([PROGRAM, str(folder), *words], num_ranks, **options)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "facts.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return facts_of(tmp_path_factory.mktemp("alone") / "run", 1)


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request, tmp_path_factory):
    """Facts, the number of ranks, and whether the sums double."""
    num_ranks, nodes, doubles = LAYOUTS[request.param]
    is_openmpi = "Open MPI" in request.param
    if is_openmpi and OPENMPI is None:
        pytest.skip("needs MPITRAIN_OPENMPI_PYTHON")
    facts = facts_of(tmp_path_factory.mktemp("nodes") / "run", num_ranks, nodes, OPENMPI if is_openmpi else None)
    return facts, num_ranks, doubles, is_openmpi


@pytest.mark.parametrize("way", ["fixed", "fixed, one by one", "layers", "profiled", "no room", "no functions"])
def test_every_rank_has_the_bits_of_one_rank_alone(alone, layout, way):
    facts, num_ranks, doubles, is_openmpi = layout
    (expected,) = alone[way]
    is_inside = way not in ("no room", "no functions")
    assert len(facts[way]) == num_ranks
    for seen in facts[way]:
        assert seen["nodes"] > 1
        assert (seen["exchanges"], seen["doubles"]) == (is_inside, is_inside and doubles)
        assert seen["handle_bytes"] == ((8 if is_openmpi else 4) if is_inside else None)
        assert [seen[what] for what in SAME] == [expected[what] for what in SAME]


def test_an_epoch_is_one_call(layout):
    facts = layout[0]
    assert [facts[way][0]["calls"] for way in ("fixed", "any", "layers")] == [3, 3, 3]
    num_steps = len(facts["fixed"][0]["losses"])
    assert [facts[way][0]["calls"] for way in ("fixed, one by one", "no room", "no functions")] == [num_steps] * 3
    assert num_steps > 3


def test_joined_slices_agree_to_rounding(alone, layout):
    facts = layout[0]
    (expected,) = alone["fixed"]
    assert len({json.dumps([seen[what] for what in SAME]) for seen in facts["any"]}) == 1
    assert all(seen["exchanges"] for seen in facts["any"])
    assert facts["any"][0]["losses"] == pytest.approx(expected["losses"], rel=1e-4)


def test_a_stop_asked_on_one_node_is_heard_on_all_after_one_step(alone, layout):
    for seen in layout[0]["stopped"]:
        assert seen["calls"] == [[3, False], [1, True]]
        assert seen["weights"] == alone["stopped"][0]["weights"]


def test_ranks_sleep_until_a_late_one_of_another_node_has_come(layout):
    for seen in layout[0]["waiting"]:
        if not seen["is_late"]:
            assert seen["wall_s"] > 0.5
            assert seen["cpu_s"] < 0.5 * seen["wall_s"]


def test_every_rank_tells_its_time_among_the_nodes(layout):
    """Those that wait for their node's first rank too, so that the rank which waits least tells the message's time."""
    assert all(0 < seen["messages_s"] < 60 for seen in layout[0]["fixed"])


def test_an_error_of_mpi_is_raised_as_mpi4py_raises_it(layout):
    facts, num_ranks, *_ = layout
    is_each_on_its_own = facts["fixed"][0]["nodes"] == num_ranks
    assert ("broken" in facts) == is_each_on_its_own
    for seen in facts.get("broken", []):
        assert seen["kind"] == "Exception"
        assert "datatype" in seen["text"].lower() or "MPI_ERR_TYPE" in seen["text"]

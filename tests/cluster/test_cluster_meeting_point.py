import pytest

from mpitrain.cluster import host_list
from mpitrain.cluster.meeting_point import master_address
from mpitrain.errors import LaunchError

STEP = {
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "n[07-08],b1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "1",
}
BY_HAND = {"RANK": "0", "WORLD_SIZE": "2"}


@pytest.fixture(autouse=True)
def _no_name_service(monkeypatch):
    """A node that has no address of its own: what the name service says of such names is none of our business."""
    monkeypatch.setattr(host_list, "_resolves", lambda name: name != "without-name")
    monkeypatch.setattr(host_list, "_show_node", lambda node: f"NodeName={node} NodeAddr=10.1.2.3 NodeHostName=x")


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, ("10.0.0.1", 29500)),
        (STEP, ("n07", 20000 + 42 * 31 + 3)),
        ({**STEP, "SLURM_JOB_ID": "7123456"}, ("n07", 20000 + (7123456 * 31 + 3) % 12768)),
        ({**STEP, "MASTER_PORT": "29500"}, ("n07", 29500)),
        ({**STEP, "MASTER_ADDR": "n08"}, ("n08", 21305)),
        ({**STEP, "MASTER_PORT": "1"}, ("n07", 1)),
        ({**STEP, "MASTER_PORT": "65535"}, ("n07", 65535)),
        ({**STEP, "MASTER_ADDR": "", "MASTER_PORT": ""}, ("n07", 21305)),
        ({**STEP, "SLURM_STEP_NODELIST": "without-name,n1"}, ("10.1.2.3", 21305)),
    ],
)
def test_meeting_points(environ, address):
    assert master_address(environ) == address


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT not set"),
        ({**BY_HAND, "MASTER_ADDR": "a"}, "MASTER_PORT"),
        ({**BY_HAND, "MASTER_PORT": "1"}, "MASTER_ADDR"),
        ({**STEP, "MASTER_PORT": "70000"}, "MASTER_PORT=70000: not a port from 1 to 65535"),
        ({**STEP, "MASTER_PORT": "http"}, "MASTER_PORT=http"),
        ({**STEP, "MASTER_PORT": "0"}, "MASTER_PORT=0"),
        ({**STEP, "MASTER_PORT": "65536"}, "MASTER_PORT=65536: not a port from 1 to 65535"),
        ({**STEP, "SLURM_JOB_ID": "x"}, "SLURM_JOB_ID=x: not a number; set MASTER_PORT"),
        ({**STEP, "SLURM_STEP_NODELIST": "n[2-1]"}, "cannot read"),
    ],
)
def test_what_to_set_is_named(environ, words):
    with pytest.raises(LaunchError, match=words):
        master_address(environ)


def test_an_arbitrary_distribution_starts_at_its_host_file(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("n08*3\nn07\n")
    step = {**STEP, "SLURM_DISTRIBUTION": "arbitrary", "SLURM_HOSTFILE": str(hosts)}
    assert master_address(step) == ("n08", 21305)
    hosts.unlink()
    with pytest.raises(LaunchError, match=r"cannot be read here, .*set MASTER_ADDR to rank 0's host"):
        master_address(step)


def test_a_node_without_any_address_keeps_its_name():
    assert host_list.node_address("without-name", lambda node: "slurm_load_node error") == "without-name"

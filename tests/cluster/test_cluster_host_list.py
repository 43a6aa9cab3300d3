import os
import re
import shutil
import subprocess

import pytest

from mpitrain.cluster.host_list import expand_host_list, expand_tasks_per_node
from mpitrain.errors import LaunchError

SPELLINGS = [
    ("a1", "a1"),
    ("localhost", "localhost"),
    ("nid001234", "nid001234"),
    ("node-1.cluster.example", "node-1.cluster.example"),
    ("login_1", "login_1"),
    ("a1,a2", "a1 a2"),
    ("a2,a1", "a2 a1"),
    ("a1,b1,a1", "a1 b1 a1"),
    (" a1,a2\n", "a1 a2"),
    ("a1, a2", "a1 a2"),
    ("a[1]", "a1"),
    ("a[1-2]", "a1 a2"),
    ("a[1,3]", "a1 a3"),
    ("a[3,1]", "a3 a1"),
    ("a[1-2,4]", "a1 a2 a4"),
    ("a[1-2,4-5]", "a1 a2 a4 a5"),
    ("a[1-2,4],b07", "a1 a2 a4 b07"),
    ("b07,a[1-2]", "b07 a1 a2"),
    ("a[1-2,4],b07,c[01-03]-ib", "a1 a2 a4 b07 c01-ib c02-ib c03-ib"),
    ("c[1-2],g[3-4]", "c1 c2 g3 g4"),
    ("n[001-003,007]-ib", "n001-ib n002-ib n003-ib n007-ib"),
    ("n[01-03]", "n01 n02 n03"),
    ("n[08-11]", "n08 n09 n10 n11"),
    ("n[8-11]", "n8 n9 n10 n11"),
    ("n[98-101]", "n98 n99 n100 n101"),
    ("n[098-101]", "n098 n099 n100 n101"),
    ("n[099-100]", "n099 n100"),
    ("n[0-1]", "n0 n1"),
    ("n[00-01]", "n00 n01"),
    ("n[5-5]", "n5"),
    ("n[1,01,001]", "n1 n01 n001"),
    ("n[1-2,01-02]", "n1 n2 n01 n02"),
    ("[1-2]", "1 2"),
    ("[1-2]n", "1n 2n"),
    ("r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"),
    ("r[1-2][3-4]", "r13 r14 r23 r24"),
    ("r[1-2]n[1,3]-ib", "r1n1-ib r1n3-ib r2n1-ib r2n3-ib"),
    ("r1n[1-2],r2n1", "r1n1 r1n2 r2n1"),
    ("a[1]b[2]c[3]", "a1b2c3"),
    ("gpu-a100-[1-2].example.org", "gpu-a100-1.example.org gpu-a100-2.example.org"),
    ("nid[001234-001235,001240]", "nid001234 nid001235 nid001240"),
    ("n[1-2],n[4-5],n7", "n1 n2 n4 n5 n7"),
    ("n[ 1-2 , 4 ]", "n1 n2 n4"),
    ("x[9-10]y[0-0]", "x9y0 x10y0"),
]

MORE_SPELLINGS = (
    "cn[0001-0003]", "rack1-[7-9]", "a[1-1,2-2,3-3]", "x1y[1-2]z1w[3-4]", "n1,n[2-3],m[4-5],k6", "node[010-012,100]",
    "h[1-3,7-9,12]", "g[1-2],g[4-5],g[7]", "r01c[01-02],r02c[03-04]", "n[10,9,8]", "a-b-[3-4]", "z[0-3]",
)  # fmt: skip


@pytest.mark.parametrize(("text", "hosts"), SPELLINGS)
def test_spellings(text, hosts):
    assert expand_host_list(text) == hosts.split()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a,,b",
        "a,",
        "a[1-2",
        "a1-2]",
        "a[]",
        "a[1,]",
        "a[2-1]",
        "a[x-y]",
        "a[1-2-3]",
        "a[[1]]",
        "a b",
        "a[-1]",
        "a]1[",
    ],
)
def test_unreadable_host_lists_are_refused_with_an_example(text):
    with pytest.raises(LaunchError, match=r"cannot read .* write it like `a\[1-2,4\],b07`"):
        expand_host_list(text)


@pytest.mark.parametrize("text", ["a[1-999999999999]", "a[1-90000]b[1-90000]", "a[1-60000],b[1-60000]"])
def test_absurd_lengths_are_refused_before_memory_is_filled(text):
    with pytest.raises(LaunchError, match="more than 100000 nodes"):
        expand_host_list(text)


@pytest.mark.parametrize(
    ("text", "counts"),
    [("4", [4]), ("3,1", [3, 1]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x2),3", [1, 2, 2, 3]), ("8(x1)", [8])],
)
def test_tasks_per_node(text, counts):
    assert expand_tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2x3", "2(x3", "1,,2", "-1"])
def test_unreadable_tasks_per_node_are_refused(text):
    with pytest.raises(LaunchError, match=r"tasks per node .* write it like `2\(x3\),1`"):
        expand_tasks_per_node(text)


@pytest.mark.lab
@pytest.mark.skipif(shutil.which("scontrol") is None, reason="no scontrol: apt-get install slurm-wlm")
def test_scontrol_reads_the_same_hosts(tmp_path):
    configuration = tmp_path / "slurm.conf"
    configuration.write_text("ClusterName=here\nSlurmctldHost=localhost\n")
    environ = {**os.environ, "SLURM_CONF": str(configuration)}
    num_agreed = 0
    for text, _ in (*SPELLINGS, *((text, "") for text in MORE_SPELLINGS)):
        told = subprocess.run(
            ["scontrol", "show", "hostnames", text.strip()], env=environ, capture_output=True, text=True
        )  # fmt: skip
        if "Invalid hostlist" in told.stderr + told.stdout:
            # Names that go on after the brackets: some releases refuse them, sites have them all the same.
            assert " " in text or re.search(r"\][^],\[]*[a-z-][^],\[]*(,|$)", text), text
            continue
        assert expand_host_list(text) == told.stdout.split(), text
        num_agreed += 1
    assert num_agreed >= 40

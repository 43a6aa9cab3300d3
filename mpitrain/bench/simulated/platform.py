"""A described cluster in SimGrid's words: its platform file, and the hosts of the ranks. Pure functions."""

from __future__ import annotations

from mpitrain.bench.simulated.cluster import Cluster

# In each direction a message passes the cable of its sender and that of its receiver: half the latency in each.
_CABLES_A_WAY = 2
_TEMPLATE = """\
<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="cluster" prefix="node-" suffix="" radical="0-{last}" speed="1Gf" core="{cores}"
           lat="{latency_us:.9g}us" bw="{bandwidth_gb_s:.9g}GBps" sharing_policy="SPLITDUPLEX"
           loopback_lat="{memory_latency_us:.9g}us" loopback_bw="{memory_bandwidth_gb_s:.9g}GBps"/>
</platform>
"""


def render_platform(cluster: Cluster, num_nodes: int) -> str:
    """Return the XML of `num_nodes` of the cluster's nodes, each with a cable of its own to one switch.

    A core does 10^9 operations a second, whatever its speed: simulated_step.cpp is told seconds.
    """
    return _TEMPLATE.format(
        last=num_nodes - 1,
        cores=cluster.cores,
        latency_us=cluster.network_latency_us / _CABLES_A_WAY,
        bandwidth_gb_s=cluster.network_bandwidth_gb_s,
        memory_latency_us=cluster.memory_latency_us,
        memory_bandwidth_gb_s=cluster.memory_bandwidth_gb_s or cluster.network_bandwidth_gb_s,
    )


def render_hosts(cluster: Cluster, num_ranks: int) -> str:
    """Return the host of each rank, a line each: node after node is filled."""
    return "".join(f"node-{rank // cluster.ranks_per_node}\n" for rank in range(num_ranks))


def nodes_of(cluster: Cluster, num_ranks: int) -> int:
    """Return how many nodes so many ranks fill."""
    return -(-num_ranks // cluster.ranks_per_node)

"""What the planner is told of a machine: links between ranks, none to memory, and a rank's share of what all use."""

from __future__ import annotations

import pytest

from foreshard.simulator.results.planner_comparison import machine_topology
from foreshard.topologies.presets import load_preset


def test_ranks_of_a_cpu_host_talk_over_their_share_of_the_loopback():
    """Four ranks on four cores: what one core carries over the loopback, not what it reads from memory as well."""
    cluster = load_preset("cpu-host", 2)
    node = cluster.node_kinds[0]
    (shared,) = (link.usable for link in node.links if (link.src, link.dst) == ("cpu0", "cpu1"))
    (nic,) = (link.usable for link in node.links if link.src == "nic0" and link.dst not in ("cpu0", "cpu1"))
    found = machine_topology(cluster, 8, 4)
    assert found.intra_bytes_per_s == pytest.approx(shared / 4)
    assert found.inter_bytes_per_s == pytest.approx(nic / 4)


def test_gpus_talk_over_nvlink_and_their_share_of_the_nics():
    cluster = load_preset("p5.48xlarge", 2)
    node = cluster.node_kinds[0]
    found = machine_topology(cluster, 16, 8)
    nvlinks = [link.usable for link in node.links if link.src == "gpu0" and link.kind == "nvlink"]
    nics = [link.usable for link in node.links if link.src.startswith("nic") and link.kind == "network"]
    assert found.intra_bytes_per_s == pytest.approx(sum(nvlinks))
    assert found.inter_bytes_per_s == pytest.approx(sum(nics) / 8)
    assert min(nvlinks + nics) > 0

"""Nodes whose ranks are processes on CPUs: what a rank has of the host, and how ranks reach each other."""

from __future__ import annotations

import pytest

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.explicit import dump_cluster

CORE = """
[cpu]
name = "core"
flops = { fp32 = "80 GFLOP/s" }
memory_bandwidth = "10 GB/s"
cache = "1 MiB"
source = "mine"
"""
NODE = """
schema = 1
name = "mine"
nodes = 2
{top}
[node]
ranks = {ranks}
cores = {cores}
memory = {{ bandwidth = "40 GB/s", usable = "32 GB/s", latency = "0.1 us", source = "mine" }}
host_memory = "8 GiB"
loopback = {{ bandwidth = "4 GB/s", usable = "2 GB/s", latency = "20 us", source = "mine" }}
nic = {{ bandwidth = "500 Mbit/s", usable = "480 Mbit/s", latency = "50 us", source = "tc" }}
source = "mine"
"""


def cluster(ranks: int = 2, cores: float = 1, top: str = "", core: str = CORE) -> Cluster:
    return Cluster(parse_cluster(NODE.format(top=top, ranks=ranks, cores=cores) + core, where="file"))


def test_ranks_share_the_cores_the_memory_and_its_bandwidth() -> None:
    """Two ranks on one core have half of it each; 32 GB/s of memory are more than their halves of a core stream."""
    rank = cluster().gpu(0)
    assert rank.flops == {"fp32": 40e9}
    assert rank.hbm_bytes_per_s == 5e9
    assert rank.hbm_bytes == 4 * 2**30


def test_a_rank_uses_no_more_than_one_core_and_its_share_of_the_memory() -> None:
    """Four ranks on eight cores compute with one each, and divide 32 GB/s of memory."""
    rank = cluster(ranks=4, cores=8).gpu(0)
    assert rank.flops == {"fp32": 80e9}
    assert rank.hbm_bytes_per_s == 8e9


def test_ranks_of_a_node_talk_over_the_loopback_and_to_other_nodes_through_the_nic() -> None:
    """Inside: out of one rank's socket, over the node's loopback, into another's; across: over NIC and cable."""
    machine = cluster()
    inside = [machine.link(link) for link in machine.path(0, 1)]
    assert [(link.src, link.dst, link.kind) for link in inside] == [
        ("node0/gpu0", "node0/cpu0", "loopback"),
        ("node0/cpu0", "node0/cpu1", "loopback"),
        ("node0/cpu1", "node0/gpu1", "loopback"),
    ]
    across = [machine.link(link).kind for link in machine.path(0, 2)]
    assert across == ["loopback", "dram", "network", "network", "dram", "loopback"]


@pytest.mark.parametrize(("ranks", "cores", "together"), [(4, 2, 4e9), (4, 8, 8e9), (2, 0.5, 1e9)])
def test_a_rank_sends_with_one_core_and_all_of_them_with_the_cores_there_are(
    ranks: int, cores: float, together: float
) -> None:
    """2 GB/s a core: no more for one rank, and for all together as many cores as there are ranks for."""
    machine = cluster(ranks=ranks, cores=cores)
    assert [machine.link(link).usable for link in machine.path(0, 1)] == [2e9, together, 2e9]


def test_ranks_on_cpus_use_gloo() -> None:
    """Without a word it is gloo; NCCL is refused."""
    assert cluster().backend == "gloo"
    assert cluster().on_cpu
    with pytest.raises(InputError, match='"nccl" needs GPUs'):
        cluster(top='backend = "nccl"')


def test_a_node_of_cpu_ranks_survives_its_explicit_form() -> None:
    """Written link by link and read again it is the same machine."""
    spec = cluster().spec
    assert parse_cluster(dump_cluster(spec), where="file") == spec


def test_every_mistake_of_a_cpu_node_is_told() -> None:
    """No core of that name, no cores, a GPU's key, a rate without unit."""
    text = NODE.format(top='cpu = "x86-avx3-core"', ranks=2, cores=0).replace('"4 GB/s"', "4")
    with pytest.raises(InputError) as caught:
        parse_cluster(text.replace("ranks = 2", "ranks = 2\ngpus = 2"), where="file")
    told = "\n".join(caught.value.problems)
    for part in (
        "cpu: there is no cpu 'x86-avx3-core'",
        "node.cores: 0",
        "node.gpus: unknown key",
        "loopback.bandwidth",
    ):
        assert part in told


def test_gpus_and_cpu_ranks_do_not_mix() -> None:
    """One job has ranks of one kind."""
    groups = """
schema = 1
name = "mixed"
[[groups]]
preset = "cpu-host"
nodes = 1
[[groups]]
preset = "pcie-4x"
nodes = 1
"""
    with pytest.raises(InputError, match="one job has ranks of one kind"):
        parse_cluster(groups, where="file")


def test_without_a_nic_a_node_stands_alone() -> None:
    """One node needs no NIC; a second one could not be reached."""
    text = "\n".join(line for line in NODE.splitlines() if not line.startswith("nic"))
    text = text.format(top="", ranks=2, cores=1) + CORE
    assert Cluster(parse_cluster(text, where="file", nodes=1)).size == 2
    with pytest.raises(InputError, match="NIC"):
        Cluster(parse_cluster(text, where="file"))

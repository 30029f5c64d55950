"""Relations between collectives that users or NVIDIA state, which hold whatever a machine's true rates are."""

from __future__ import annotations

import pytest

from foreshard.simulator.comms.single import run_one
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.presets import load_preset

MIB, GIB = 2.0**20, 2.0**30


def described(text: str, nodes: int) -> Cluster:
    return Cluster(parse_cluster(f"schema = 1\n{text}", where="case", nodes=nodes))


V100_ONE_NIC = 'preset = "dgx1-v100"\nname = "8 V100, one EDR NIC"\n[node]\nnics = 1\n'
A100_ONE_NIC = 'preset = "dgx-a100"\nname = "8 A100, one EDR NIC"\n[node]\nnics = 1\nnic = "edr-100g"\n'
A100_FOUR = 'preset = "dgx-a100"\nname = "4 A100, 4 x HDR"\n[node]\ngpus = 4\nnics = 4\npcie_switches = 2\n'
A100_FOUR_TWO_NICS = 'preset = "dgx-a100"\nname = "4 A100, 2 x HDR"\n[node]\ngpus = 4\nnics = 2\npcie_switches = 2\n'


@pytest.mark.parametrize("nodes", [2, 4, 6, 16])
def test_busbw_of_a_large_all_to_all_is_the_nic_times_n_minus_1_over_n_minus_g(nodes):
    # NVIDIA/nccl-tests#130: with g GPUs a node and n ranks, in the limit of large messages.
    cluster = load_preset("dgx-h100", nodes)
    result = run_one(cluster, "all_to_all", 2.0**44)
    n, g = cluster.size, 8
    nic = 49e9
    assert result.busbw_bytes_per_s == pytest.approx(nic * (n - 1) / (n - g), rel=1e-3)


def test_an_all_reduce_on_two_nodes_exceeds_the_nic_and_falls_with_a_third():
    # B12, nccl-tests#169 and #196: on two nodes a tree sends the buffer once through the NICs.
    two, three = (run_one(load_preset("p4d.24xlarge", nodes), "all_reduce", GIB) for nodes in (2, 3))
    assert two.busbw_bytes_per_s > 1.3 * three.busbw_bytes_per_s
    assert "tree" in two.algorithm


def test_half_of_the_nics_carry_half():
    # B5, nccl#439 (one ring found instead of two) and B20, nccl-tests#277 (2 NICs of 4).
    four, two = (run_one(described(text, 2), "all_reduce", 4 * GIB) for text in (A100_FOUR, A100_FOUR_TWO_NICS))
    assert four.busbw_bytes_per_s / two.busbw_bytes_per_s == pytest.approx(2.0, rel=0.05)


def test_a_ring_is_as_slow_as_its_slowest_node():
    # B9, nccl-tests#106: 49.4 instead of 88.4 GB/s as soon as one node is in it.
    whole = run_one(load_preset("dgx-a100", 4), "all_gather", 4 * GIB)
    slow = run_one(load_preset("dgx-a100", 4, {"node2/nic*": 0.56}), "all_gather", 4 * GIB)
    assert slow.busbw_bytes_per_s / whole.busbw_bytes_per_s == pytest.approx(0.56, rel=0.02)
    assert "node2" in slow.bottleneck


def test_bytes_a_nic_tell_what_busbw_does_not():
    # A23, nccl-tests#181: 2 x 8 GPUs print 3.92 GB/s of busbw; 16.7 GB/s leave each node.
    cluster = described(V100_ONE_NIC, 2)
    result = run_one(cluster, "all_to_all", GIB)
    assert result.nic_bytes / (GIB / (3.92e9 * 16 / 15)) == pytest.approx(16.7e9, rel=0.01)


def test_going_to_a_second_node_is_the_large_step():
    # A21, Tutel#160: 12.3 ms on one node, about 1 s on four; from then on hardly more.
    one, two, four, eight = (
        run_one(described(A100_ONE_NIC, nodes), "all_to_all", 256 * MIB).time_s for nodes in (1, 2, 4, 8)
    )
    assert two > 30 * one
    assert eight < 2 * two
    assert four < eight

"""Bounds by hand: what must enter and leave a GPU, a node, and the nodes below the same leaf switches."""

from __future__ import annotations

import pytest

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.single import run_one, uniform_collective
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.presets import load_preset

GIB = 2.0**30
LEAVES = """schema = 1
preset = "p5.48xlarge"
name = "6 nodes, 2 below a leaf"
nodes = 6
[fabric]
kind = "leaf_spine"
nodes_per_leaf = 2
spines = 2
oversubscription = {oversubscription}
source = "made up for tests"
"""


def leaves(oversubscription):
    return Cluster(parse_cluster(LEAVES.format(oversubscription=oversubscription), where="test"))


def bound(cluster, kind, ranks=None):
    (one,) = lower(cluster, uniform_collective(kind, range(cluster.size) if ranks is None else ranks, GIB))
    return one


@pytest.mark.parametrize(
    ("kind", "share"), [("all_gather", 2 / 3), ("reduce_scatter", 2 / 3), ("broadcast", 1.0), ("all_reduce", 4 / 3)]
)
def test_what_two_nodes_of_six_lack_comes_over_the_uplinks_of_their_leaf(kind, share):
    """16 NICs of 50 GB/s over an oversubscription of 3: 266.7 GB/s below each of three leaves."""
    one = bound(leaves(3.0), kind)
    assert one.bound_s == pytest.approx(share * GIB / (16 * 50e9 / 3))
    assert "spine" in one.bottleneck


def test_without_oversubscription_the_nics_bind():
    one = bound(leaves(1.0), "all_gather")
    assert one.bound_s == pytest.approx(5 / 6 * GIB / 400e9)
    assert one.bottleneck == "node0/nic0->leaf0"


def test_an_order_that_zigzags_between_leaves_has_the_same_bound_and_takes_longer():
    cluster = leaves(3.0)
    nodes = [0, 2, 4, 1, 3, 5]
    plain, zigzag = bound(cluster, "all_gather"), run(cluster, [8 * node + i for node in nodes for i in range(8)])
    assert zigzag.bound_s == plain.bound_s
    assert zigzag.phases[0].transfer_s(cluster.link_usable) > 1.9 * plain.phases[0].transfer_s(cluster.link_usable)


def run(cluster, ranks):
    return bound(cluster, "all_gather", ranks)


def test_a_slow_nic_takes_from_the_bound_what_it_no_longer_carries():
    """Another algorithm could deal bytes over the other seven: only their sum bounds. The slow one is named."""
    harmed = load_preset("p5.48xlarge", 2, {"node1/nic3<->leaf0": 0.5})
    one = bound(harmed, "all_gather")
    assert one.bound_s == pytest.approx(GIB / 2 / (7.5 * 50e9))
    assert one.bottleneck == "node1/nic3->leaf0"


def test_what_a_ring_moves_twice_binds_only_among_equals():
    """Seven whole nodes could add up for the slow one: its NICs must carry the buffer once out and once in."""
    whole, harmed = (bound(load_preset("p5.48xlarge", 8, d), "all_reduce") for d in ({}, {"node1/nic3<->*": 0.5}))
    assert whole.bound_s == pytest.approx(2 * 7 / 8 * GIB / 400e9)
    assert harmed.bound_s == pytest.approx(GIB / 375e9)


def test_uplinks_do_not_bind_where_nvlinks_lead_around_them():
    """Every tray has a leaf of its own, but two trays share NVLinks: bytes from tray 1 can leave by tray 0."""
    text = """schema = 1
preset = "gb200-nvl72"
name = "two trays a domain"
nodes = 4
nodes_per_domain = {domain}
[fabric]
kind = "leaf_spine"
nodes_per_leaf = 1
spines = 1
oversubscription = 100.0
source = "made up for tests"
"""
    apart, joined = (Cluster(parse_cluster(text.format(domain=domain), where="test")) for domain in (1, 2))
    assert "spine" in bound(apart, "all_gather").bottleneck
    assert "spine" not in bound(joined, "all_gather").bottleneck


def test_only_the_way_that_is_slow_binds():
    """An all_gather brings 7 nodes' parts into each of 8 nodes, and takes each node's own part out once."""
    out, into = (bound(load_preset("p5.48xlarge", 8, {link: 0.25}), "all_gather") for link in ("*->leaf*", "leaf*->*"))
    assert out.bound_s == pytest.approx(7 / 8 * GIB / 400e9)
    assert into.bound_s == pytest.approx(7 / 8 * GIB / 100e9)
    assert into.bottleneck == "leaf0->node0/nic0"


def test_a_node_of_fewer_ranks_lacks_more():
    """GB200: 4 GPUs alone in the second rack lack the parts of 72 others, and have 4 NICs for them."""
    one = bound(load_preset("gb200-nvl72", 19), "all_gather")
    assert one.bound_s == pytest.approx(72 / 76 * GIB / (4 * 50e9))
    assert one.bottleneck.startswith("node18/nic")


def test_a_mesh_of_equal_gpus_must_move_what_a_ring_moves():
    """DGX-1: 6 NVLinks of 25 GB/s each way at every GPU, and no switch that adds."""
    assert bound(load_preset("dgx1-v100"), "all_reduce").bound_s == pytest.approx(2 * 7 / 8 * GIB / 150e9)


@pytest.mark.parametrize("nodes", [32, 33, 64])
def test_more_scalable_units_than_one_change_no_bound(nodes):
    """DGX H100 has 32 nodes below the same rail switches, and as many uplinks as NICs."""
    result = run_one(load_preset("dgx-h100", nodes), "all_reduce", GIB)
    assert result.bound_s == pytest.approx(2 * (nodes - 1) / nodes * GIB / 400e9)

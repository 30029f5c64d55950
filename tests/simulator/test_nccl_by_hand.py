"""NCCL's latencies, limits and choices worked out by hand from the figures it publishes (src/graph/tuning.cc, 2.30)."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log2

import pytest

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.nccl import (
    Shape,
    choices,
    latency,
    port_limit,
    rate_limit,
    ring_share,
    tables,
    tree_correction,
    wire_factor,
)
from foreshard.simulator.comms.single import alone_s, run_one, uniform_collective
from foreshard.topologies.cluster import Cluster, Sourced
from foreshard.topologies.presets import load_preset

US, GB = 1e-6, 1e9
ENDLESS = 2.0**44
H100 = Shape(
    ranks=32,
    nodes=4,
    largest=8,
    lanes=8,
    port=370.8 * GB,
    architecture="hopper",
    nvlink=True,
    in_switch=True,
    post_s=US,
)
ONE_NODE = replace(H100, ranks=8, nodes=1)
TWO_NODES = replace(H100, ranks=16, nodes=2)
ONE_EACH = replace(H100, ranks=16, nodes=16, largest=1, lanes=1)


# -- the published tables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "algorithm", "expected"),
    [
        ("base", "tree", [6.8, 14, 8.4]), ("base", "ring", [6.6, 14, 8.4]), ("base", "nvls", [0, 0, 0]),
        ("base", "pat", [8, 8, 8]),
        ("nvlink", "tree", [0.6, 1.25, 4]), ("nvlink", "ring", [0.6, 1.9, 3.4]), ("nvlink", "nvls", [25, 25, 25]),
        ("nvlink", "pat", [4, 4, 4]),
        ("pcie", "tree", [1, 1.9, 4]), ("pcie", "ring", [1, 2.5, 5.7]),
        ("network", "tree", [5, 8.5, 14]), ("network", "ring", [2.7, 4, 14]), ("network", "nvls", [18, 18, 18]),
        ("network", "pat", [14, 14, 14]),
    ],
)  # fmt: skip
def test_latencies_are_those_nccl_publishes(place, algorithm, expected):
    assert tables()["latency"][place][algorithm] == expected


@pytest.mark.parametrize(
    ("table", "architecture", "expected"),
    [
        ("ll_max_bandwidth", "volta", [39, 39, 20.4]), ("ll_max_bandwidth", "ampere", [87.7, 22.5, 19]),
        ("ll_max_bandwidth", "hopper", [141, 45, 35]), ("ll_max_bandwidth", "blackwell", [282, 90, 70]),
        ("ring_ll128_per_channel", "volta", [20, 20, 20]), ("ring_ll128_per_channel", "ampere", [20, 20, 20]),
        ("ring_ll128_per_channel", "hopper", [36.7, 36.7, 36.7]), ("ring_ll128_per_channel", "blackwell", [40, 40, 40]),
        ("tree_ll128_per_channel", "volta", [20, 20, 20]), ("tree_ll128_per_channel", "ampere", [20, 20, 20]),
        ("tree_ll128_per_channel", "hopper", [36.7, 36.7, 29]),
        ("tree_ll128_per_channel", "blackwell", [55.6, 31.67, 20]),
        ("tree_per_channel", "volta", [26.5, 18.5, 10]), ("tree_per_channel", "ampere", [24, 23.6, 17.8]),
        ("tree_per_channel", "hopper", [38.7, 41.4, 36]), ("tree_per_channel", "blackwell", [70, 42.8, 24]),
    ],
)  # fmt: skip
def test_limits_are_those_nccl_publishes(table, architecture, expected):
    assert tables()[table][architecture] == expected


def test_in_switch_reduction_has_the_efficiency_nccl_publishes_less_one_of_16_channels():
    assert tables()["nvls"]["efficiency"] == {"hopper": 0.85, "blackwell": 0.74}
    assert tables()["nvls"]["channel_share"] == 15 / 16


def test_flags_double_the_bytes_of_ll_and_take_8_of_128_in_ll128():
    assert [wire_factor(protocol) for protocol in ("LL", "LL128", "Simple")] == [2, pytest.approx(128 / 120), 1]


@pytest.mark.parametrize(
    ("protocol", "head", "valley", "tail"), [("LL", 1, 0.4, 1), ("LL128", 1, 0.6, 1), ("Simple", 0.9, 0.5, 0.9)]
)
def test_trees_are_corrected_by_size_and_alike_below_64_bytes_and_above_512_mib(protocol, head, valley, tail):
    assert [tree_correction(protocol, nbytes) for nbytes in (1, 64)] == [head, head]
    assert tree_correction(protocol, 64 * 2.0**12) == valley
    assert [tree_correction(protocol, nbytes) for nbytes in (2.0**29, 2.0**40)] == [tail, tail]


def test_between_two_sizes_a_tree_is_corrected_by_a_straight_line_in_the_power():
    # Simple: 0.9 at 64 B x 2^6, 0.8 at 2^7.
    assert tree_correction("Simple", 64 * 2.0**6.25) == pytest.approx(0.875)


# -- latencies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rounds"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring_takes_every_hop_once_a_round_and_some_of_them_between_nodes(kind, rounds):
    known = latency(kind, "ring", "LL", H100)
    # 31 hops, 3 between 4 nodes; the other 28 take at least the 1 us of posting a network operation.
    assert known.inside_s == pytest.approx((6.6 + rounds * 28 * 1.0) * US)
    assert (known.hop_s, known.network_hops) == (pytest.approx(2.7 * US), rounds * 3)
    alone = latency(kind, "ring", "LL", ONE_NODE)
    assert (alone.inside_s, alone.network_hops) == (pytest.approx((6.6 + rounds * 7 * 0.6) * US), 0)


def test_posting_costs_a_ring_of_simple_three_times_as_much_and_hides_behind_longer_hops():
    amd = replace(H100, post_s=2 * US)
    inside = {protocol: latency("all_gather", "ring", protocol, amd).inside_s for protocol in ("LL", "LL128", "Simple")}
    assert inside["LL"] == pytest.approx((6.6 + 28 * 2.0) * US)
    assert inside["LL128"] == pytest.approx((14 + 28 * 2.0) * US)
    assert inside["Simple"] == pytest.approx((8.4 + 28 * 6.0) * US)
    quick = latency("all_gather", "ring", "Simple", replace(H100, post_s=US))
    assert quick.inside_s == pytest.approx((8.4 + 28 * 3.4) * US)


def test_without_nvlink_hops_are_those_of_pcie():
    assert latency("all_gather", "ring", "Simple", replace(ONE_NODE, nvlink=False)).inside_s == pytest.approx(
        (8.4 + 7 * 5.7) * US
    )


def test_a_tree_goes_up_and_down_its_chain_of_gpus_and_its_levels_of_nodes():
    known = latency("all_reduce", "tree", "LL128", H100)
    assert known.inside_s == pytest.approx((14 + 2 * 7 * 1.25) * US)
    assert (known.hop_s, known.network_hops) == (pytest.approx(8.5 * US), 2 * log2(4))


def test_in_switch_reduction_is_one_hop_inside_and_a_tree_between_nodes():
    assert latency("all_reduce", "nvls", "Simple", ONE_NODE).inside_s == pytest.approx(25 * US)
    known = latency("all_reduce", "nvls_tree", "Simple", TWO_NODES)
    assert (known.inside_s, known.hop_s, known.network_hops) == (pytest.approx(25 * US), pytest.approx(18 * US), 2)


def test_pat_costs_some_microseconds_a_rank_and_the_logarithm_of_the_nodes_over_three_and_a_half():
    known = latency("all_gather", "pat", "Simple", ONE_EACH)
    assert known.inside_s == pytest.approx((8 + 16 * 2.8) * US)
    assert (known.hop_s, known.network_hops) == (pytest.approx(14 * US), pytest.approx(4 / 3.5))


# -- what exists --------------------------------------------------------------------------------------------------


def algorithms(kind, shape):
    return {algorithm for algorithm, _ in choices(kind, shape)}


def test_only_an_all_reduce_has_trees_and_switches():
    assert algorithms("all_reduce", ONE_NODE) == {"ring", "tree", "nvls"}
    assert algorithms("all_reduce", H100) == {"ring", "tree", "nvls_tree"}
    assert algorithms("all_reduce", replace(H100, in_switch=False)) == {"ring", "tree"}
    for kind in ("all_gather", "reduce_scatter", "broadcast"):
        assert algorithms(kind, H100) == {"ring"}


def test_pat_exists_for_one_rank_a_node_in_gathers_and_scatters_alone():
    for kind in ("all_gather", "reduce_scatter"):
        assert algorithms(kind, ONE_EACH) == {"ring", "pat"}
        assert algorithms(kind, replace(ONE_EACH, ranks=1, nodes=1)) == {"ring"}
    assert algorithms("broadcast", ONE_EACH) == {"ring"}
    assert "pat" not in algorithms("all_reduce", ONE_EACH)


def test_a_ring_carries_the_buffer_twice_once_or_just_so_less_a_part():
    assert ring_share("all_reduce", 8) == 2 * 7 / 8
    assert ring_share("broadcast", 8) == 1
    assert ring_share("all_gather", 8) == ring_share("reduce_scatter", 8) == 7 / 8


# -- limits of bandwidth ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "cap"), [(ONE_NODE, 141), (TWO_NODES, 45), (H100, 35), (replace(H100, nodes=9), 35)])
def test_ll_is_capped_by_the_number_of_nodes(shape, cap):
    limit = rate_limit("all_gather", ("ring", "LL"), shape, ENDLESS)
    assert limit == pytest.approx(cap * GB / ring_share("all_gather", shape.ranks))


def test_channels_limit_ll128_and_trees_between_nodes_and_simple_rings_nowhere():
    assert rate_limit("all_gather", ("ring", "Simple"), H100, ENDLESS) == inf
    assert rate_limit("all_gather", ("ring", "LL128"), ONE_NODE, ENDLESS) == inf
    assert rate_limit("all_reduce", ("nvls_tree", "Simple"), H100, ENDLESS) == inf
    ring = rate_limit("all_gather", ("ring", "LL128"), H100, ENDLESS)
    assert ring == pytest.approx(8 * 36.7 * GB / (31 / 32))
    # A tree moves the buffer up and down: half of the bus bandwidth.
    assert rate_limit("all_reduce", ("tree", "LL128"), H100, ENDLESS) == pytest.approx(8 * 29 * GB / 2)
    assert rate_limit("all_reduce", ("tree", "Simple"), TWO_NODES, ENDLESS) == pytest.approx(8 * 41.4 * GB / 2 * 0.9)


def test_an_unknown_generation_has_the_limits_of_ampere():
    ada = replace(H100, architecture="ada")
    assert rate_limit("all_gather", ("ring", "LL"), ada, ENDLESS) == pytest.approx(19 * GB / (31 / 32))


def test_ports_give_rings_all_trees_less_and_switches_their_efficiency():
    assert port_limit("all_gather", ("ring", "Simple"), H100, ENDLESS) == pytest.approx(370.8 * GB / (31 / 32))
    shares = {"LL": 0.92 / 3.8, "LL128": 0.92 * 7 / 9, "Simple": 0.92}
    for protocol, share in shares.items():
        corrected = tree_correction(protocol, ENDLESS)
        assert port_limit("all_reduce", ("tree", protocol), ONE_NODE, ENDLESS) == pytest.approx(
            370.8 * GB * share / 2 * corrected
        )
    more = port_limit("all_reduce", ("tree", "LL128"), H100, ENDLESS)
    assert more == pytest.approx(370.8 * GB * 0.92 * 120 / 128 / 2)
    switch = port_limit("all_reduce", ("nvls", "Simple"), ONE_NODE, ENDLESS)
    assert switch == pytest.approx(370.8 * GB * 0.85 * 15 / 16 / (1 + 1 / 8))


# -- whole collectives --------------------------------------------------------------------------------------------


def busbw(cluster, kind):
    return run_one(cluster, kind, ENDLESS).busbw_bytes_per_s / GB


def test_large_collectives_reach_what_their_bottleneck_gives():
    # Switches that add up: 2 (7/8) over 1 + 1/8 of what 0.85 x 15/16 of the port give. A ring: the port.
    assert busbw(load_preset("p5.48xlarge", 1), "all_reduce") == pytest.approx(
        370.8 * 0.85 * 15 / 16 * 2 * (7 / 8) / (9 / 8), rel=1e-4
    )
    assert busbw(load_preset("p5.48xlarge", 1), "all_gather") == pytest.approx(370.8, rel=1e-4)
    assert busbw(load_preset("dgx-a100", 1), "all_reduce") == pytest.approx(240, rel=1e-4)
    # Between nodes: 8 NICs of which a ring sustains 0.885.
    assert busbw(load_preset("p5.48xlarge", 4), "all_gather") == pytest.approx(8 * 50 * 0.885, rel=1e-4)
    assert busbw(load_preset("p5.48xlarge", 4), "broadcast") == pytest.approx(8 * 50 * 0.885, rel=1e-4)


def test_a_ring_of_a_mesh_uses_links_in_proportion_to_their_width():
    # DGX-1: every GPU has six NVLinks, to some neighbours two; all are equally busy, so a ring moves 6 x 20 GB/s.
    cluster = load_preset("dgx1-v100", 1)
    assert busbw(cluster, "all_gather") == pytest.approx(6 * 20, rel=1e-4)
    (lowered,) = lower(cluster, uniform_collective("all_gather", range(8), ENDLESS))
    (phase,) = lowered.phases
    share = phase.nbytes / cluster.link_bandwidth[phase.links]
    assert len(phase.links) == 32
    assert share == pytest.approx(share[0])


def bytes_on(cluster, kind, ranks, expected, name):
    """Bytes for each byte of size on one link of an endless collective."""
    (lowered,) = lower(cluster, uniform_collective(kind, ranks, ENDLESS))
    assert lowered.algorithm == expected
    (phase,) = lowered.phases
    found = dict(zip((cluster.link_name(int(link)) for link in phase.links), phase.nbytes / ENDLESS, strict=True))
    return found.get(name, 0.0)


def test_a_ring_enters_a_node_once_and_passes_all_of_its_gpus_but_one_link():
    # 16 ranks in two nodes, 15/16 of the size on each hop: seven of eight hops of a channel are inside, one between.
    cluster = load_preset("p5.48xlarge", 2)
    inside = bytes_on(cluster, "all_gather", range(16), "ring Simple", "node0/gpu3->node0/nvswitch")
    between = bytes_on(cluster, "all_gather", range(16), "ring Simple", "node0/nic3->leaf0")
    assert (inside, between) == (pytest.approx(15 / 16 * 7 / 8), pytest.approx(15 / 16 / 8))


def test_a_ring_of_uneven_nodes_uses_all_nics_of_both():
    # 12 ranks, eight and four: eight lanes, one on each NIC of the larger node, two on each of the smaller.
    cluster = load_preset("p5.48xlarge", 2)
    for name, lanes in (("node0/nic7->leaf0", 1), ("node1/nic3->leaf0", 2), ("node1/nic4->leaf0", 0)):
        found = bytes_on(cluster, "all_gather", range(12), "ring Simple", name)
        assert found == pytest.approx(11 / 12 * lanes / 8)


def test_switches_that_add_up_move_the_size_and_a_ranks_part_and_chains_twice_all_but_a_part():
    # NVLS: a GPU gives all and gets its eighth, then the other way round. A tree's chain of eight: 2 (1 - 1/8).
    one, two = load_preset("dgx-h100", 1), load_preset("p4d.24xlarge", 2)
    port = "node0/gpu0->node0/nvswitch"
    assert bytes_on(one, "all_reduce", range(8), "nvls Simple", port) == pytest.approx(9 / 8)
    assert bytes_on(two, "all_reduce", range(16), "tree Simple", port) == pytest.approx(2 * 7 / 8)


def test_what_the_launch_of_several_gpus_by_one_process_costs_is_added_to_every_collective():
    cluster = load_preset("dgx-a100", 1)
    late = cluster.with_constants({"collective_launch_s": Sourced(value=25 * US, unit="s", source="made up")})
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        for nbytes in (8.0, 2.0**30):
            gap = run_one(late, kind, nbytes).time_s - run_one(cluster, kind, nbytes).time_s
            assert gap == pytest.approx(25 * US, rel=1e-6)


def phase_of(cluster, kind, nbytes, expected):
    (lowered,) = lower(cluster, uniform_collective(kind, range(cluster.size), nbytes))
    assert lowered.algorithm == expected
    return lowered.phases[0], alone_s(cluster, lowered)


def test_an_idle_network_adds_its_latency_to_each_hop_and_twice_where_a_flush_is_waited_for():
    # p5 on two nodes: a tree of LL is 6.8 + 14 x 0.6 + 2 x (5 + 21.96) us, as its constant was read off.
    phase, _ = phase_of(load_preset("p5.48xlarge", 2), "all_reduce", 8.0, "tree LL")
    assert phase.latency_s == pytest.approx((6.8 + 2 * 7 * 0.6 + 2 * (5 + 21.96)) * US, rel=1e-3)
    # Large ones wait for a loaded network: 75 us, and again for its flush; NVLS has 18 us of its own a hop.
    phase, _ = phase_of(load_preset("p5.48xlarge", 2), "all_reduce", 2.0**33, "nvls_tree Simple")
    assert phase.latency_s == pytest.approx((25 + 2 * (18 + 2 * 75)) * US)


def test_pat_waits_for_no_flush():
    cluster = load_preset("p5.48xlarge", 16)
    (lowered,) = lower(cluster, uniform_collective("all_gather", range(0, 128, 8), 1.0))
    assert lowered.algorithm == "pat Simple"
    assert lowered.phases[0].latency_s == pytest.approx((8 + 16 * 2.8 + 4 / 3.5 * (14 + 21.96)) * US, rel=1e-3)


def test_lines_of_ll128_hide_a_part_of_the_hops_behind_the_transfer():
    # Hops and transfer take (hops^p + transfer^p)^(1/p) together, p = 1.33, after what the ring costs inside.
    cluster = load_preset("p5.48xlarge", 4)
    nbytes = 2.0**25
    phase, total = phase_of(cluster, "all_gather", nbytes, "ring LL128")
    nic_s = nbytes * 31 / 32 * 128 / 120 / 8 / 50e9
    loaded = 21.96 + (75 - 21.96) * min(1, nic_s / (75 * US))
    hops = 3 * (4 + loaded) * US
    transfer = max(nic_s / 0.885, nbytes * 31 / 32 / (8 * 36.7e9))
    inside = (14 + 28 * 2) * US
    assert total == pytest.approx(inside + (hops**1.33 + transfer**1.33) ** (1 / 1.33), rel=1e-6)
    assert phase.latency_s == pytest.approx(total - transfer, rel=1e-6)


# -- gloo ---------------------------------------------------------------------------------------------------------


def on_gloo(nodes=2):
    constants = {
        "gloo_base_s": Sourced(value=100 * US, unit="s", source="made up"),
        "gloo_step_s": Sourced(value=40 * US, unit="s", source="made up"),
    }
    return Cluster(replace(load_preset("pcie-4x", nodes).spec, backend="gloo")).with_constants(constants)


@pytest.mark.parametrize(
    ("kind", "steps", "nic_bytes"),
    [
        ("all_reduce", 2 * 7, 2 * 7 / 8), ("reduce_scatter", 2 * 7, 2 * 7 / 8), ("all_gather", 7, 7 / 8),
        ("broadcast", 3, 4.0), ("all_to_all", 7, 4 * 4 / 8),
    ],
)  # fmt: skip
def test_gloo_takes_as_many_steps_as_were_counted_and_sends_as_many_bytes(kind, steps, nic_bytes):
    # 2 nodes of 4 ranks behind one NIC: all_reduce and reduce_scatter go round twice.
    cluster = on_gloo()
    result = run_one(cluster, kind, 1.0)
    assert result.time_s == pytest.approx((100 + steps * 40) * US, rel=1e-5)
    assert run_one(cluster, kind, 2.0**30).nic_bytes == pytest.approx(nic_bytes * 2.0**30)


def test_a_hop_of_gloo_takes_no_less_than_the_wire():
    far = on_gloo()
    text = replace(far.spec.fabric, kind="leaf_spine", nodes_per_leaf=1, latency_s=1.0)
    slow = Cluster(replace(far.spec, fabric=text))
    assert run_one(slow, "all_gather", 1.0).time_s == pytest.approx(7 * 2.0, rel=1e-3)

"""Collectives as loads on links: bytes, algorithms and bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foreshard.simulator.comms.collectives import check_bound, lower
from foreshard.simulator.comms.single import alone_s, run_one, uniform_collective
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.traffic import PairBytes
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import BoundViolationError
from foreshard.topologies.presets import load_preset

KINDS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]


def world(cluster, kind, nbytes):
    traffic = (PairBytes.uniform(cluster.size, nbytes),) if kind == "all_to_all" else ()
    return Collective(kind=kind, groups=Groups.world(cluster.size), traffic=traffic, nbytes=(nbytes,))


@pytest.mark.parametrize("kind", ["all_to_all", *KINDS])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("nbytes", [8.0, 2.0**20, 2.0**30])
def test_no_collective_is_faster_than_its_bound(kind, nodes, nbytes):
    cluster = load_preset("p5.48xlarge", nodes=nodes)
    (lowered,) = lower(cluster, world(cluster, kind, nbytes))
    assert lowered.bound_s >= 0
    check_bound(kind, alone_s(cluster, lowered), lowered)


def test_a_time_below_its_bound_is_a_bug():
    cluster = load_preset("dgx-h100", nodes=2)
    (lowered,) = lower(cluster, world(cluster, "all_to_all", 1e9))
    with pytest.raises(BoundViolationError, match="report it"):
        check_bound("a2a", lowered.bound_s * 0.99, lowered)


def test_all_to_all_sends_through_a_nic_what_goes_to_other_nodes():
    cluster = load_preset("p5.48xlarge", nodes=4)
    (lowered,) = lower(cluster, world(cluster, "all_to_all", 32e6))
    (phase,) = lowered.phases
    network = cluster.link_kind[phase.links] == "network"
    np.testing.assert_allclose(phase.nbytes[network], 24e6)


def test_what_stays_on_the_rank_loads_no_link():
    cluster = load_preset("p5.48xlarge", nodes=1)
    traffic = PairBytes.dense(np.diag(np.full(8, 1e9)))
    (lowered,) = lower(cluster, Collective(kind="all_to_all", groups=Groups.world(8), traffic=(traffic,)))
    assert sum(phase.nbytes.sum() for phase in lowered.phases) == 0


# -- algorithms and protocols -------------------------------------------------------------------------------------


def algorithm(cluster, kind, nbytes, ranks=None):
    (lowered,) = lower(cluster, uniform_collective(kind, range(cluster.size) if ranks is None else ranks, nbytes))
    return lowered.algorithm


@pytest.mark.parametrize(
    ("name", "nodes", "kind", "nbytes", "expected"),
    [
        ("p5.48xlarge", 1, "all_reduce", 8.0, "ring LL"),
        ("p5.48xlarge", 1, "all_reduce", 2.0**30, "nvls Simple"),
        ("p5.48xlarge", 2, "all_reduce", 8.0, "tree LL"),
        ("p5.48xlarge", 2, "all_reduce", 2.0**30, "nvls_tree Simple"),
        ("p5.48xlarge", 4, "all_gather", 2.0**25, "ring LL128"),
        ("p5.48xlarge", 4, "all_gather", 2.0**31, "ring Simple"),
        ("dgx-a100", 1, "all_reduce", 2.0**30, "ring Simple"),
        ("p4d.24xlarge", 2, "all_reduce", 2.0**30, "tree Simple"),
    ],
)
def test_the_protocol_follows_the_size_and_the_algorithm_the_machine(name, nodes, kind, nbytes, expected):
    assert algorithm(load_preset(name, nodes), kind, nbytes) == expected


def test_one_rank_a_node_gathers_a_little_by_pat_and_much_by_a_ring():
    cluster = load_preset("dgx-h100", 16)
    ranks = range(0, cluster.size, 8)
    assert algorithm(cluster, "all_gather", 2.0**12, ranks) == "pat Simple"
    assert algorithm(cluster, "all_gather", 2.0**32, ranks).startswith("ring")


def test_switches_reduce_on_hopper_and_not_on_ampere():
    assert "nvls" in algorithm(load_preset("dgx-h100", 1), "all_reduce", 2.0**32)
    assert "nvls" not in algorithm(load_preset("dgx-a100", 1), "all_reduce", 2.0**32)


def test_switches_that_may_not_reduce_in_one_node_of_a_group_do_not_reduce_for_it():
    """nvls = false is NCCL_NVLS_ENABLE=0: the ring's bound of 2 (n-1)/n comes back, too."""
    group = '{{ preset = "dgx-h100", nodes = 1, node = {{ nvls = {} }} }}'
    mixed = f'schema = 1\nname = "t"\ngroups = [{group.format("true")}, {group.format("false")}]\n'
    cluster = Cluster(parse_cluster(mixed, where="t"))
    assert algorithm(cluster, "all_reduce", 2.0**32, range(8)) == "nvls Simple"
    assert algorithm(cluster, "all_reduce", 2.0**32, range(8, 16)) == "ring Simple"
    assert "nvls" not in algorithm(cluster, "all_reduce", 2.0**32)
    first, second = (
        lower(cluster, uniform_collective("all_reduce", ranks, 450e9))[0].bound_s for ranks in (range(8), range(8, 16))
    )
    assert (first, second) == (pytest.approx(1.0), pytest.approx(2 * 7 / 8))


def test_ll128_is_not_used_without_nvlink():
    sizes = [2.0**power for power in range(3, 34)]
    cluster = load_preset("pcie-4x", 2)
    assert not any("LL128" in algorithm(cluster, "all_reduce", nbytes) for nbytes in sizes)


def test_a_group_of_one_rank_moves_nothing():
    cluster = load_preset("p5.48xlarge", 1)
    assert algorithm(cluster, "all_reduce", 1e9, [3]) == "none"


def test_gloo_has_its_own_collectives():
    cluster = Cluster(replace(load_preset("pcie-4x", 1).spec, backend="gloo"))
    assert algorithm(cluster, "all_reduce", 1e6) == "gloo ring"
    assert algorithm(cluster, "all_to_all", 1e6) == "gloo pairwise"


def test_a_damaged_node_is_like_no_other():
    """Two groups of one collective, one of them in a node whose NVLinks carry a tenth: ten times its bound."""
    cluster = load_preset("dgx-h100", 2, {"node1/gpu*<->node1/nvswitch": 0.1})
    groups = Groups([np.arange(8), np.arange(8, 16)])
    whole, damaged = lower(cluster, Collective(kind="all_gather", groups=groups, nbytes=(1e9,)))
    assert damaged.bound_s == pytest.approx(10 * whole.bound_s)
    (alone,) = lower(cluster, uniform_collective("all_gather", range(8, 16), 1e9))
    assert alone_s(cluster, damaged) == pytest.approx(alone_s(cluster, alone))


# -- the graph matters --------------------------------------------------------------------------------------------


def described(fabric):
    text = f'schema = 1\npreset = "dgx-h100"\nname = "case"\n[fabric]\n{fabric}\nsource = "made up for tests"\n'
    return Cluster(parse_cluster(text, where="case", nodes=8))


def test_oversubscribed_leaves_slow_an_all_to_all_and_are_named_as_the_bottleneck():
    flat = run_one(described('kind = "single_switch"'), "all_to_all", 2.0**32)
    two_to_one = run_one(
        described('kind = "leaf_spine"\nnodes_per_leaf = 2\noversubscription = 4.0'), "all_to_all", 2.0**32
    )
    assert two_to_one.time_s > 3 * flat.time_s
    assert "spine" in two_to_one.bottleneck


def test_a_slower_link_that_nobody_uses_changes_nothing():
    whole = run_one(load_preset("p5.48xlarge", 2), "all_to_all", 2.0**30)
    slower = run_one(load_preset("p5.48xlarge", 2, {"*mem*": 0.1}), "all_to_all", 2.0**30)
    assert slower.time_s == whole.time_s


def test_a_half_nic_halves_a_ring_and_is_named():
    whole = run_one(load_preset("p5.48xlarge", 2), "all_gather", 2.0**34)
    halved = run_one(load_preset("p5.48xlarge", 2, {"node1/nic3->leaf*": 0.5}), "all_gather", 2.0**34)
    assert halved.time_s / whole.time_s == pytest.approx(2.0, rel=0.1)
    assert halved.bottleneck.startswith("node1/nic3->")

"""Laws of collectives, searched for violations over machines, kinds, sizes and groups."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.loads import Loads
from foreshard.simulator.comms.members import Members
from foreshard.simulator.comms.single import alone_s, run_collectives, run_one, uniform_collective
from foreshard.simulator.comms.symmetry import template_of
from foreshard.simulator.comms.tuned import tuned
from foreshard.simulator.job.layout import Groups, Layout, resolve_layout
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.traffic import PairBytes
from foreshard.topologies.presets import load_preset, preset_names

machine = cache(load_preset)
MACHINES = ["p5.48xlarge", "p4d.24xlarge", "dgx-h100", "dgx-a100", "dgx1-v100", "pcie-4x", "p6-b200.48xlarge"]
KINDS = ["all_to_all", "all_reduce", "reduce_scatter", "all_gather", "broadcast"]
ROUNDING = 1 + 1e-9

machines = st.sampled_from(MACHINES)
kinds = st.sampled_from(KINDS)
sizes = st.floats(0, 36).map(lambda power: 2.0**power)


def time_of(cluster, kind, nbytes):
    (lowered,) = lower(cluster, uniform_collective(kind, range(cluster.size), nbytes))
    return alone_s(cluster, lowered)


@given(machines, kinds, st.integers(1, 9), sizes)
def test_the_simulated_time_is_the_closed_form_and_not_below_the_bound(name, kind, nodes, nbytes):
    cluster = machine(name, nodes)
    result = run_one(cluster, kind, nbytes)
    assert result.time_s == pytest.approx(time_of(cluster, kind, nbytes), rel=1e-9)
    assert result.time_s * ROUNDING >= result.bound_s > 0


@given(machines, kinds, st.integers(1, 9), sizes, st.floats(1.0, 4.0))
def test_more_bytes_are_never_faster(name, kind, nodes, nbytes, factor):
    cluster = machine(name, nodes)
    assert time_of(cluster, kind, nbytes) <= time_of(cluster, kind, nbytes * factor) * ROUNDING


def per_rank_time(name, kind, nodes, nbytes):
    """Seconds with `nbytes` a rank: nccl-tests counts all_gather and reduce_scatter by the whole buffer, which holds as
    many bytes a rank times the ranks."""
    cluster = machine(name, nodes)
    whole = kind in ("all_gather", "reduce_scatter")
    return time_of(cluster, kind, nbytes * cluster.size / cluster.local_world_size if whole else nbytes)


def filled(name):
    """Node counts at which all NVLink domains of a machine are alike: parts of one domain, and whole domains."""
    of_domain = machine(name, 1).spec.nodes_per_domain
    return st.integers(1, of_domain) | st.integers(1, 45 if of_domain == 1 else 5).map(lambda n: n * of_domain)


@pytest.mark.parametrize("name", preset_names())
@given(kind=kinds, data=st.data(), nbytes=sizes)
def test_the_same_bytes_per_rank_on_more_nodes_are_never_faster(name, kind, data, nbytes):
    fewer, more = sorted((data.draw(filled(name)), data.draw(filled(name))))
    gain = _switch_reduction(name, kind, more) / _switch_reduction(name, kind, fewer)
    assert per_rank_time(name, kind, fewer, nbytes) * gain <= per_rank_time(name, kind, more, nbytes) * ROUNDING


def _switch_reduction(name, kind, nodes):
    """What a GPU moves per byte when the NVSwitch of its domain adds up: all of the buffer, and its own n-th part.

    It is less with more GPUs on one switch, and so is the measured time of NVLS (busbw of 5, 6, 7, 8 H100: 420, 440,
    460, 480 GB/s, which is 3.81, 3.79, 3.73, 3.65 us a MB): the one case in which more ranks are faster.
    """
    cluster = machine(name, nodes)
    return 1 + 1 / np.bincount(cluster.domain_of).max() if kind == "all_reduce" else 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_domain_of_few_gpus_beside_a_full_one_is_slower_than_two_full_ones(kind):
    # A tray alone in the second rack has 4 NICs for what 72 GPUs exchange with it: no fault of the model.
    alone, full = (per_rank_time("gb200-nvl72", kind, nodes, 2.0**32) for nodes in (19, 36))
    assert alone > 1.5 * full


def test_a_lone_tray_sends_all_but_its_own_part_through_its_nics():
    cluster = machine("gb200-nvl72", 19)
    result = run_one(cluster, "all_to_all", 2.0**36)
    assert result.nic_bytes == pytest.approx(2.0**36 * 72 / 76)
    assert {end.rstrip("0123") for end in result.bottleneck.split("->")} == {"node18/nic", "leaf"}
    assert result.time_s == pytest.approx(2.0**36 * 72 / 76 / 49e9, rel=1e-3)


@given(machines, kinds, st.integers(1, 5), sizes, st.sampled_from(["*gpu*->*", "*nic*", "*->leaf*", "node0/*"]))
def test_slower_links_are_never_faster(name, kind, nodes, nbytes, pattern):
    whole = machine(name, nodes)
    assume(any(_matches(whole, pattern)))
    slow = load_preset(name, nodes, {pattern: 0.5})
    assert time_of(whole, kind, nbytes) <= time_of(slow, kind, nbytes) * ROUNDING


def _matches(cluster, pattern):
    from fnmatch import fnmatchcase

    return (fnmatchcase(cluster.link_name(link), pattern) for link in range(len(cluster.link_usable)))


@given(st.sampled_from(["p5.48xlarge", "p4d.24xlarge", "pcie-4x"]), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_renaming_ranks_renames_the_result(name, nodes, seed):
    cluster = machine(name, nodes)
    rng = np.random.default_rng(seed)
    matrix = rng.random((cluster.size, cluster.size)) * 1e6
    order = rng.permutation(cluster.size)
    ranks = np.arange(cluster.size)
    (one,) = lower(cluster, _all_to_all(ranks, matrix))
    (other,) = lower(cluster, _all_to_all(ranks[order], matrix[np.ix_(order, order)]))
    np.testing.assert_allclose(_on_links(cluster, one), _on_links(cluster, other))
    assert one.bound_s == pytest.approx(other.bound_s)
    assert one.phases[0].latency_s == pytest.approx(other.phases[0].latency_s)


def _all_to_all(ranks, matrix):
    return Collective(kind="all_to_all", groups=Groups([ranks]), traffic=(PairBytes.dense(matrix),))


def _on_links(cluster, lowered):
    total = np.zeros(len(cluster.link_usable))
    for phase in lowered.phases:
        np.add.at(total, phase.links, phase.nbytes)
    return total


@given(st.sampled_from(["p5.48xlarge", "p4d.24xlarge", "dgx-h100"]), st.integers(0, 2**32 - 1))
def test_renaming_nodes_changes_no_time(name, seed):
    cluster = machine(name, 4)
    rng = np.random.default_rng(seed)
    matrix = rng.random((32, 32)) * 1e6
    ranks = np.arange(32).reshape(4, 8)[rng.permutation(4)].ravel()
    (one,) = lower(cluster, _all_to_all(np.arange(32), matrix))
    (other,) = lower(cluster, _all_to_all(ranks, matrix))
    assert alone_s(cluster, one) == pytest.approx(alone_s(cluster, other))


@pytest.mark.parametrize("name", ["p5.48xlarge", "p4d.24xlarge", "dgx-h100", "gb200-nvl72"])
@pytest.mark.parametrize("placement", ["contiguous", "interleaved"])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_groups_that_lie_alike_are_lowered_as_if_each_were_the_only_one(name, placement, size):
    cluster = load_preset(name, nodes=8)
    rng = np.random.default_rng(7)
    groups = resolve_layout(Layout(sharding_group_size=size, placement=placement), cluster.size).sharding
    matrices = [rng.random((size, size)) * 1e6 for _ in range(len(groups))]
    traffic = tuple(PairBytes.dense(matrix) for matrix in matrices)
    for lowered, ranks, matrix in zip(
        lower(cluster, Collective(kind="all_to_all", groups=groups, traffic=traffic)),
        groups.members,
        matrices,
        strict=True,
    ):
        src, dst = np.nonzero(~np.eye(size, dtype=bool))
        links, nbytes = cluster.loads(ranks[src], ranks[dst], matrix[src, dst])
        expected = np.zeros(len(cluster.link_usable))
        expected[links] = nbytes
        np.testing.assert_allclose(_on_links(cluster, lowered), expected)
    for lowered, ranks in zip(
        lower(cluster, Collective(kind="all_reduce", groups=groups, nbytes=(1e8,))), groups.members, strict=True
    ):
        fresh = load_preset(name, nodes=8)
        (alone,) = lower(fresh, uniform_collective("all_reduce", ranks.tolist(), 1e8))
        assert alone.algorithm == lowered.algorithm
        assert alone.bottleneck == lowered.bottleneck
        assert alone.phases[0].latency_s == lowered.phases[0].latency_s
        np.testing.assert_array_equal(_on_links(cluster, lowered), _on_links(cluster, alone))


@given(st.integers(1, 4), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_following_paths_loads_the_links_that_the_cluster_loads(nodes, flows, seed):
    from foreshard.simulator.comms.loads import Flows

    cluster = machine("p4d.24xlarge", nodes)
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, cluster.size, (2, flows))
    nbytes = rng.random(flows) + 0.1
    along = Loads._along_paths(cluster, Flows(src, dst, nbytes))
    links, expected = cluster.loads(src, dst, nbytes)
    np.testing.assert_array_equal(along.links, links)
    np.testing.assert_allclose(along.nbytes, expected)


@pytest.mark.parametrize("name", ["p4d.24xlarge", "dgx-h100", "dgx1-v100", "gb200-nvl72"])
def test_following_paths_finds_the_latency_the_cluster_states(name, monkeypatch):
    import foreshard.simulator.comms.loads as module

    cluster = load_preset(name, nodes=24)
    src = np.arange(0, cluster.size, 5)
    flows = module.Flows(src, (src * 7 + 3) % cluster.size, np.ones(len(src)))
    stated = module.longest_latency_s(cluster, flows)
    monkeypatch.setattr(module, "_LINKS_FOR_A_PATH", 0)
    assert module.longest_latency_s(cluster, flows) == pytest.approx(stated, rel=1e-12)


@given(st.sampled_from(["p5.48xlarge", "p4d.24xlarge"]), st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_the_two_steps_of_a_hierarchical_all_to_all_deliver_every_byte(name, nodes, seed):
    cluster = machine(name, nodes)
    matrix = np.random.default_rng(seed).random((cluster.size, cluster.size)) * 1e6
    collective = _all_to_all(np.arange(cluster.size), matrix)
    (plain,) = lower(cluster, collective)
    (two_steps,) = lower(cluster, replace(collective, steps="hierarchical"))
    node = cluster.node_of
    crossing = matrix[node[:, None] != node[None, :]].sum()
    for lowered in (plain, two_steps):
        out_of_nics = [
            link for link in range(len(cluster.link_usable)) if "nic" in cluster.link_name(link).split("->")[0]
        ]
        network = cluster.link_kind == "network"
        sent = _on_links(cluster, lowered)[[link for link in out_of_nics if network[link]]].sum()
        assert sent == pytest.approx(crossing)
    assert alone_s(cluster, two_steps) * ROUNDING >= two_steps.bound_s


@given(kinds, sizes)
def test_collectives_on_disjoint_links_take_the_longer(kind, nbytes):
    cluster = machine("p5.48xlarge", 2)
    one, other = (uniform_collective(kind, range(8 * node, 8 * node + 8), nbytes * (1 + node)) for node in (0, 1))
    ((first,), (second,)), _ = run_collectives(cluster, [(0.0, one), (0.0, other)])
    alone = [run_collectives(cluster, [(0.0, each)])[0][0][0] for each in (one, other)]
    assert max(first, second) == pytest.approx(max(alone), rel=1e-9)


@given(kinds, kinds, sizes, sizes)
def test_collectives_that_share_links_take_no_longer_than_one_after_the_other(kind, other_kind, nbytes, other_bytes):
    cluster = machine("p5.48xlarge", 2)
    both = [uniform_collective(kind, range(16), nbytes), uniform_collective(other_kind, range(16), other_bytes)]
    times, link_bytes = run_collectives(cluster, [(0.0, each) for each in both])
    alone = [run_collectives(cluster, [(0.0, each)])[0][0][0] for each in both]
    # What ends within a picosecond of each other ends at the same instant.
    longest = max(time for (time,) in times) + 2e-12
    assert longest <= sum(alone) * ROUNDING + 4e-12
    assert longest * ROUNDING >= max(alone)
    assert longest * ROUNDING >= (link_bytes / cluster.link_usable).max()


@given(machines, kinds, st.integers(1, 4), sizes)
def test_two_equal_collectives_on_the_same_links_keep_them_busy_twice_as_long(name, kind, nodes, nbytes):
    """Twice the time of the links, latency once; only what a protocol's own channels limit (LL, LL128 and trees, which
    have a floor) is nobody else's: those two share what the one leaves."""
    cluster = machine(name, nodes)
    one = uniform_collective(kind, range(cluster.size), nbytes)
    ((first,), (second,)), link_bytes = run_collectives(cluster, [(0.0, one), (0.0, one)])
    (lowered,) = lower(cluster, one)
    latency = sum(phase.latency_s for phase in lowered.phases)
    busy = [replace(phase, floor_s=0.0).transfer_s(cluster.link_usable) for phase in lowered.phases]
    floors = [phase.floor_s for phase in lowered.phases]
    expected = latency + sum(max(floor, 2 * alone) for floor, alone in zip(floors, busy, strict=True))
    assert first == second == pytest.approx(expected, rel=1e-9, abs=4e-12)
    np.testing.assert_allclose(link_bytes, 2 * _on_links(cluster, lowered), rtol=1e-9)
    if kind == "all_to_all" or "ring Simple" in lowered.algorithm or "nvls" in lowered.algorithm:
        assert first - latency == pytest.approx(2 * (alone_s(cluster, lowered) - latency), rel=1e-9, abs=4e-12)


@pytest.mark.parametrize("name", [*MACHINES, "a3-mega", "gb200-nvl72", "zionex"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_two_large_collectives_at_once_take_twice_as_long_as_one(name, nodes):
    cluster = machine(name, nodes)
    for kind in ("all_to_all", "reduce_scatter", "all_gather", "broadcast"):
        one = uniform_collective(kind, range(cluster.size), 2.0**38)
        ((first,), (second,)), _ = run_collectives(cluster, [(0.0, one), (0.0, one)])
        assert first == second == pytest.approx(2 * time_of(cluster, kind, 2.0**38), rel=2e-3)


@given(machines, kinds, st.integers(1, 4), sizes)
def test_no_port_takes_up_less_of_a_link_than_its_bytes(name, kind, nodes, nbytes):
    cluster = machine(name, nodes)
    (lowered,) = lower(cluster, uniform_collective(kind, range(cluster.size), nbytes))
    assert all(np.min(phase.stretch, initial=1.0) >= 1.0 for phase in lowered.phases)


@given(st.sampled_from(KINDS[1:]), sizes, st.integers(2, 3))
def test_what_is_worked_out_for_one_group_is_worked_out_once(kind, nbytes, nodes):
    cluster = machine("p5.48xlarge", nodes)
    template = template_of(cluster, np.arange(8))
    tuned(template, kind, nbytes)
    other = template_of(cluster, np.arange(8, 16))
    assert other is template
    assert (kind, nbytes) in other.drafts


def test_two_flows_on_one_nic_take_twice_as_long_as_on_two():
    # p4d: GPUs 0 and 1 share a NIC, GPUs 0 and 2 do not. Large messages, so that latency does not matter.
    cluster = machine("p4d.24xlarge", 2)

    def time(sources):
        matrix = np.zeros((16, 16))
        for src in sources:
            matrix[src, 8 + src] = 1e12
        return alone_s(cluster, lower(cluster, _all_to_all(np.arange(16), matrix))[0])

    assert time([0, 1]) / time([0, 2]) == pytest.approx(2.0, rel=1e-5)


def test_all_nics_of_a_node_share_a_ring_evenly():
    for name in ("p5.48xlarge", "p4d.24xlarge", "dgx-a100"):
        cluster = machine(name, 3)
        ring = Members(cluster, np.arange(cluster.size)).ring.only("network")
        np.testing.assert_allclose(ring.nbytes, ring.nbytes[0])
        per_node = int((cluster.link_kind == "network").sum()) // 3
        assert len(ring.links) == 3 * per_node


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 11])
def test_both_trees_together_give_every_node_the_buffer_once_up_and_once_down(nodes):
    cluster = machine("p5.48xlarge", nodes)
    tree = Members(cluster, np.arange(cluster.size)).tree.only("network")
    # Each of two trees has nodes - 1 edges that carry half a buffer up and half down.
    assert tree.nbytes.sum() == pytest.approx(2 * 2 * 2 * (nodes - 1) * 0.5)
    assert tree.nbytes.max() * 8 <= 2.0 + 1e-9

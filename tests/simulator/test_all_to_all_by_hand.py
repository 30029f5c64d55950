"""All-to-all latencies and rates worked out by hand, and what is said beyond the measured number of peers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foreshard.simulator import load_scenario, predict
from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.machine_constants import machine_constant
from foreshard.simulator.comms.reach import beyond_measurement, extrapolated_s
from foreshard.simulator.comms.single import run_one
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.results.report import report
from foreshard.topologies.cluster import Cluster, Sourced
from foreshard.topologies.presets import load_preset

US = 1e-6
BASE, PEER, HOPS = 10.75 * US, 5.8 * US, 3  # p5's own peer cost; base and hops are the defaults
IDLE, FULL = 21.96 * US, 75 * US


def lowered(cluster, traffic, steps="pairwise"):
    ranks = Groups([np.arange(cluster.size)])
    (found,) = lower(cluster, Collective(kind="all_to_all", groups=ranks, traffic=(traffic,), steps=steps))
    return found


def of_few_bytes(matrix):
    """So few bytes that the network is idle."""
    return PairBytes.dense(np.asarray(matrix, dtype=float) * 1e-6)


def gather(ranks, receiver):
    matrix = np.zeros((ranks, ranks))
    matrix[:, receiver] = 1.0
    return matrix


@pytest.mark.parametrize("transposed", [False, True], ids=["one receiver", "one sender"])
@pytest.mark.parametrize("outer", [False, True], ids=["matrix", "outer product"])
@pytest.mark.parametrize("nodes", [3, 9], ids=["small group", "large group"])
def test_peers_are_those_a_rank_sends_to_or_receives_from_whichever_are_more(transposed, outer, nodes):
    # 3 nodes of 8: all others send to rank 5, 16 of them from other nodes; or rank 5 sends to all others.
    cluster, ranks, remote = load_preset("p5.48xlarge", nodes), 8 * nodes, 8 * (nodes - 1)
    one, all_ranks = np.eye(ranks)[5] * 1e-6, np.ones(ranks)
    if outer:
        traffic = PairBytes.outer(one, all_ranks) if transposed else PairBytes.outer(all_ranks * 1e-6, np.eye(ranks)[5])
    else:
        matrix = gather(ranks, 5)
        traffic = of_few_bytes(matrix.T if transposed else matrix)
    found = lowered(cluster, traffic)
    assert found.peers == remote
    assert found.phases[0].latency_s == pytest.approx(BASE + remote * PEER + HOPS * IDLE)


def test_a_port_that_reaches_all_of_its_link_takes_up_its_bytes_alone():
    # DGX H100's NICs carry 49 of 50 GB/s and an all-to-all reaches all of that: no byte counts more or less than once.
    cluster = load_preset("dgx-h100", 2)
    (phase,) = lowered(cluster, PairBytes.uniform(16, 2.0**30)).phases
    assert phase.stretch[cluster.is_kind("network")[phase.links]] == pytest.approx(1.0)


def test_ranks_of_one_node_cost_no_peers_and_no_network():
    cluster = load_preset("p5.48xlarge", 2)
    matrix = np.kron(np.eye(2), np.ones((8, 8)))
    found = lowered(cluster, of_few_bytes(matrix))
    assert (found.peers, found.phases[0].latency_s) == (0, pytest.approx(BASE))


def test_a_busy_network_answers_later_up_to_its_loaded_latency():
    # Latency grows linearly from idle to loaded until the NICs are busy for as long as the loaded latency.
    cluster = load_preset("p5.48xlarge", 2)
    for nic_s, expected in ((0.4 * FULL, IDLE + 0.4 * (FULL - IDLE)), (FULL, FULL), (10 * FULL, FULL)):
        matrix = np.zeros((16, 16))
        matrix[0, 8] = nic_s * 50e9
        assert lowered(cluster, PairBytes.dense(matrix)).phases[0].latency_s == pytest.approx(
            BASE + PEER + HOPS * expected
        )


def test_two_steps_post_to_their_own_node_first_and_then_to_one_rank_of_every_other():
    cluster = load_preset("p5.48xlarge", 4)
    found = lowered(cluster, of_few_bytes(np.ones((32, 32))), "hierarchical")
    assert found.peers == 3
    assert [phase.latency_s for phase in found.phases] == [
        pytest.approx(BASE),
        pytest.approx(BASE + 3 * PEER + HOPS * IDLE),
    ]


@pytest.mark.parametrize("steps", ["pairwise", "hierarchical"])
def test_the_bound_is_what_must_leave_a_node_at_nominal_rate_whatever_the_steps(steps):
    # 4 nodes of 8, one byte a pair: 24 bytes leave each GPU; on one node 7, over NVLink.
    four = lowered(load_preset("p5.48xlarge", 4), PairBytes.dense(np.ones((32, 32))), steps)
    assert four.bound_s == pytest.approx(24 / 50e9)
    assert "->leaf0" in four.bottleneck or "leaf0->" in four.bottleneck
    one = lowered(load_preset("p5.48xlarge", 1), PairBytes.dense(np.ones((8, 8))), steps)
    assert one.bound_s == pytest.approx(7 / 450e9)
    assert "nvswitch" in one.bottleneck


def test_a_large_all_to_all_reaches_the_stated_shares_of_nvlink_and_of_nics():
    # Inside a node 0.728 of the nominal 450 GB/s, between nodes 0.881 of the nominal 50 GB/s.
    size = 2.0**44
    inside = run_one(load_preset("p5.48xlarge", 1), "all_to_all", size)
    assert inside.busbw_bytes_per_s == pytest.approx(0.728 * 450e9, rel=1e-4)
    between = run_one(load_preset("p5.48xlarge", 2), "all_to_all", size)
    assert between.time_s == pytest.approx(size / 2 / (0.881 * 50e9), rel=1e-4)


# -- beyond what was measured -------------------------------------------------------------------------------------


def test_nothing_is_extrapolated_up_to_the_measured_peers():
    cluster = load_preset("p5.48xlarge", 8)
    assert extrapolated_s(cluster, 56) == 0
    assert beyond_measurement(cluster, 56) == ""
    assert run_one(cluster, "all_to_all", 2.0**20).peers == 56


def test_what_further_peers_cost_is_told_as_extrapolated():
    cluster = load_preset("p5.48xlarge", 32)
    assert extrapolated_s(cluster, 248) == pytest.approx((248 - 56) * PEER)
    assert beyond_measurement(cluster, 248).startswith("248 remote peers a rank")
    assert "measured for up to 56: the 1.114 ms" in beyond_measurement(cluster, 248)


def test_a_calibration_with_more_peers_moves_the_limit():
    more = {"all_to_all_measured_peers": Sourced(value=248, unit="1", source="measured on 32 nodes")}
    assert beyond_measurement(load_preset("p5.48xlarge", 32).with_constants(more), 248) == ""


def test_gloo_posts_to_one_peer_after_the_other_whatever_their_number():
    gloo = Cluster(replace(load_preset("p5.48xlarge", 16).spec, backend="gloo"))
    assert run_one(gloo, "all_to_all", 1e6).peers == 0


@pytest.mark.parametrize(("nodes", "size", "told"), [(16, "world", True), (16, 8, False), (8, "world", False)])
def test_a_steps_report_says_when_an_all_to_all_goes_beyond_the_measured_peers(nodes, size, told):
    scenario = load_scenario("mlperf-dcnv2-p5", [f"cluster.nodes={nodes}", f"layout.sharding_group_size={size}"])
    made = report(predict(scenario), what_if=False)
    assert ("all-to-all beyond measurement" in [item.name for item in made.assumptions]) == told
    remote = max(row.peers for row in made.collectives if row.kind == "all_to_all")
    assert remote == (8 * (nodes - 1) if size == "world" else 0)


def test_the_constants_used_above_are_those_of_p5():
    cluster = load_preset("p5.48xlarge", 2)
    for name, value in (("base_s", BASE), ("peer_s", PEER), ("hops", HOPS)):
        assert machine_constant(cluster, f"all_to_all_{name}") == pytest.approx(value)

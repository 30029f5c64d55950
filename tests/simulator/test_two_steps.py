"""All-to-alls in two steps, `comms.all_to_all = "hierarchical"`: from the scenario's key to links, report and story."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.single import uniform_collective
from foreshard.simulator.files.document import to_toml
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.measured.profile import CollectiveCurve, Profile, SizePoint
from foreshard.simulator.results.explain_guide import explain
from foreshard.simulator.results.link_load import LinkLoads
from foreshard.simulator.results.report import report
from foreshard.simulator.results.sweep import compare
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import ContradictionError, InputError
from foreshard.topologies.presets import load_preset

HIERARCHICAL = "comms.all_to_all=hierarchical"


def scenario(*changes):
    return read_scenario("mlperf-dcnv2-p5", ["cluster.nodes=2", *changes])


def exchanges(made):
    return {row.name: row for row in made.collectives if row.kind == "all_to_all"}


def two_steps(cluster, traffic, members=None):
    ranks = np.arange(cluster.size) if members is None else np.array(members)
    work = Collective(kind="all_to_all", groups=Groups([ranks]), traffic=(traffic,), steps="hierarchical")
    (found,) = lower(cluster, work)
    return found


def by_link(cluster, phase):
    return {cluster.link_name(int(link)): nbytes for link, nbytes in zip(phase.links, phase.nbytes, strict=True)}


# -- what it puts on links -------------------------------------------------------------------------------------------


def test_a_block_goes_to_the_destinations_local_position_first_and_crosses_there():
    """Rank 0 sends 6 bytes to rank 11, local position 3 of node 1: over NVLink to rank 3, over rank 3's NIC on."""
    cluster = load_preset("p5.48xlarge", 2)
    matrix = np.zeros((16, 16))
    matrix[0, 11] = 6.0
    inside, across = two_steps(cluster, PairBytes.dense(matrix)).phases
    assert by_link(cluster, inside) == {"node0/gpu0->node0/nvswitch": 6.0, "node0/nvswitch->node0/gpu3": 6.0}
    crossed = by_link(cluster, across)
    assert set(crossed.values()) == {6.0}
    assert crossed.keys() >= {"node0/nic3->leaf0", "leaf0->node1/nic3"}
    assert not any("gpu" in name and "gpu3" not in name for name in crossed)


@pytest.mark.parametrize("nodes", [2, 3])
def test_expected_traffic_loads_the_links_as_its_matrix_does(nodes):
    cluster = load_preset("p4d.24xlarge", nodes)
    rng = np.random.default_rng(nodes)
    outer = PairBytes.outer(rng.random(cluster.size) * 1e6, rng.random(cluster.size))
    one, other = (two_steps(cluster, traffic) for traffic in (outer, PairBytes.dense(outer.to_matrix())))
    assert one.bound_s == pytest.approx(other.bound_s)
    assert one.bottleneck == other.bottleneck
    for first, second in zip(one.phases, other.phases, strict=True):
        assert first.latency_s == second.latency_s
        assert by_link(cluster, first) == pytest.approx(by_link(cluster, second))


def test_members_may_be_named_in_any_order():
    """Member 0 is rank 9 and sends one byte to member 3, rank 8: their node alone carries it, in the first step."""
    cluster = load_preset("p5.48xlarge", 2)
    matrix = np.zeros((4, 4))
    matrix[0, 3] = 1.0
    inside, across = two_steps(cluster, PairBytes.dense(matrix), [9, 1, 0, 8]).phases
    assert by_link(cluster, inside) == {"node1/gpu1->node1/nvswitch": 1.0, "node1/nvswitch->node1/gpu0": 1.0}
    assert len(across.links) == 0


@pytest.mark.parametrize("members", [range(8), (0, 8)], ids=["one node", "one member in each node"])
def test_where_one_of_the_steps_moves_nothing_it_is_not_taken(members):
    cluster = load_preset("p5.48xlarge", 2)
    found = two_steps(cluster, PairBytes.uniform(len(members), 1e6), members)
    (plain,) = lower(cluster, uniform_collective("all_to_all", members, 1e6))
    assert (found.algorithm, len(found.phases)) == ("pairwise", 1)
    assert found.phases[0].latency_s == plain.phases[0].latency_s


def test_uneven_groups_and_gloo_are_refused():
    cluster = load_preset("p5.48xlarge", 2)
    with pytest.raises(InputError, match="as many members of a group in every node, not 1 and 8: use pairwise"):
        two_steps(cluster, PairBytes.uniform(9, 1.0), range(9))
    gloo = Cluster(replace(cluster.spec, backend="gloo"))
    with pytest.raises(InputError, match="communicates with gloo, whose all-to-all has one step only: use pairwise"):
        two_steps(gloo, PairBytes.uniform(16, 1.0))


# -- as a key of a scenario ------------------------------------------------------------------------------------------


def test_every_all_to_all_of_a_step_takes_the_steps_that_the_scenario_names():
    plain, two = report(Prediction(scenario())), report(Prediction(scenario(HIERARCHICAL)))
    before, after = exchanges(plain), exchanges(two)
    assert before.keys() == after.keys() >= {"output_dist.table_wise", "output_dist_backward.table_wise"}
    assert {row.algorithm for row in before.values()} == {"pairwise"}
    assert {row.algorithm for row in after.values()} == {"hierarchical"}
    assert {row.peers for row in before.values()} == {8}
    assert {row.peers for row in after.values()} == {1}
    others = [row.algorithm for row in plain.collectives if row.kind != "all_to_all"]
    assert others == [row.algorithm for row in two.collectives if row.kind != "all_to_all"]
    assert "comms.all_to_all" not in [item.name for item in plain.assumptions]
    assert "comms.all_to_all" in [item.name for item in two.assumptions]


def test_groups_inside_a_node_keep_their_one_step():
    made = report(Prediction(scenario(HIERARCHICAL, "layout.sharding_group_size=8")), what_if=False)
    assert {row.algorithm for row in exchanges(made).values()} == {"pairwise"}


def test_fewer_peers_are_sooner_for_few_bytes():
    small = ("workload.batch_size=8", "cluster.nodes=8")
    plain, two = (exchanges(report(Prediction(scenario(*small, *more)))) for more in ((), (HIERARCHICAL,)))
    assert two["input_dist.lengths.table_wise"].time_s < plain["input_dist.lengths.table_wise"].time_s


def test_links_carry_both_steps():
    """Bytes that cross nodes are the same; those inside are more, since most blocks change ranks before they cross."""
    totals = []
    for changes in ((), (HIERARCHICAL,)):
        source = Prediction(scenario(*changes))
        loads = LinkLoads(source.trace, source.program(None), source.cluster)
        assert loads.nbytes == pytest.approx(source.trace.link_bytes)
        totals.append({kind: loads.nbytes[source.cluster.is_kind(kind)].sum() for kind in ("network", "nvlink")})
    plain, two = totals
    assert two["network"] == pytest.approx(plain["network"])
    assert two["nvlink"] > plain["nvlink"]


def test_the_key_survives_writing_and_its_default_is_not_written(tmp_path):
    file = tmp_path / "scenario.toml"
    file.write_text(to_toml(scenario(HIERARCHICAL)))
    assert 'all_to_all = "hierarchical"' in file.read_text()
    assert read_scenario(file).comms == scenario(HIERARCHICAL).comms
    assert "all_to_all" not in to_toml(scenario())


def test_a_misspelt_way_is_one_mistake():
    with pytest.raises(
        InputError, match=r'comms.all_to_all = "hierarchic": expected one of "pairwise", "hierarchical"'
    ):
        scenario("comms.all_to_all=hierarchic")


def test_groups_that_cannot_take_two_steps_are_a_contradiction():
    uneven = "layout.groups=[[0,1,2,3,4,5,6,7,8,9,10,11],[12,13,14,15]]"
    with pytest.raises(ContradictionError, match=r"comms.all_to_all.*in every node, not 4 and 8: use pairwise"):
        scenario(HIERARCHICAL, uneven, "layout.sync=gradients")
    with pytest.raises(ContradictionError, match=r"comms.all_to_all.*gloo"):
        read_scenario("host-4ranks", [HIERARCHICAL])


def test_times_that_a_profile_measured_are_not_those_of_two_steps():
    point = SizePoint(nbytes=1e6, median_s=1e-3, low_s=1e-3, high_s=1e-3, runs=1)
    curve = CollectiveCurve(kind="all_to_all", ranks_per_node=(8, 8), points=(point,))
    known = {"name": "here", "provenance": (), "device": "cuda", "device_name": "H100", "ranks_per_node": (8, 8)}
    profile = Profile(backend="nccl", collectives=(curve,), **known)
    with pytest.raises(InputError, match=r"cluster.profile measured plain send/recv: use pairwise"):
        Prediction(scenario(HIERARCHICAL), profile=profile)
    others = replace(profile, collectives=(replace(curve, kind="all_reduce"),))
    assert Prediction(scenario(HIERARCHICAL), profile=others).step_time_s > 0


def test_a_sweep_may_vary_it():
    found = compare("mlperf-dcnv2-p5", ["comms.all_to_all=pairwise,hierarchical"], ["cluster.nodes=2"])
    first, second = (row["step_time_s"] for row in found.rows)
    assert first != second


def test_the_way_of_an_id_has_both_steps_and_another_one_back():
    """Rank 1 asks rank 10 of another node: the id by way of rank 2, the vector by way of rank 9."""
    source = Prediction(scenario(HIERARCHICAL, 'plan.tables.t_cat_5={ sharding = "table_wise", ranks = [10] }'))
    stages = explain(source, "t_cat_5", 0, 1).stages
    ways = [[(hop.src, hop.dst) for hop in stages[stage].hops] for stage in (1, 2, 4)]
    assert ways == [[(1, 2), (2, 10)], [(10, 9), (9, 1)], [(1, 2), (2, 10)]]

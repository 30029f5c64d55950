"""Bytes are conserved from the plan to the links, whatever the tables, plan, layout and world."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.program import Collective, Compute
from foreshard.simulator.job.scenario import ClusterChoice, Comms, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, ShardingType, TableSharding
from foreshard.simulator.job.workload import Access, DataType, Dense, Table, Workload
from foreshard.simulator.step.prediction import Prediction

WIRE: tuple[DataType, ...] = ("fp32", "fp16", "bf16", "fp8", "int8")
KINDS: tuple[ShardingType, ...] = (
    "data_parallel",
    "table_wise",
    "column_wise",
    "row_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)


def kinds_of(table: Table) -> tuple[ShardingType, ...]:
    return KINDS[:4] if table.pooling == "none" else KINDS


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A random job on one to four nodes of eight GPUs."""
    nodes = draw(st.sampled_from([1, 2, 4]))
    tables = tuple(
        Table(
            name=f"t{i}",
            num_embeddings=draw(st.integers(1, 5_000)),
            embedding_dim=draw(st.sampled_from([8, 64, 256])),
            pooling_factor=draw(st.floats(0.5, 20)),
            pooling=draw(st.sampled_from(["sum", "mean", "none"])),
            access=Access(zipf=draw(st.sampled_from([0.0, 1.05]))),
        )
        for i in range(draw(st.integers(1, 4)))
    )
    group = draw(st.sampled_from([size for size in (1, 2, 4, 8, 16, 32) if size <= 8 * nodes]))
    placement = draw(st.sampled_from(["contiguous", "interleaved"]))
    in_nodes = group >= 8 and (placement == "contiguous" or group == 8 * nodes)  # whole nodes, as some kinds need
    shardings = tuple(
        (table.name, TableSharding(sharding=draw(st.sampled_from(kinds_of(table) if in_nodes else KINDS[:4]))))
        for table in tables
    )
    return Scenario(
        cluster=ClusterChoice(preset=draw(st.sampled_from(["p4d.24xlarge", "p5.48xlarge"])), nodes=nodes),
        workload=Workload(batch_size=draw(st.integers(1, 64)), tables=tables, dense=Dense(layers=((16, 8, 1),))),
        plan=Plan(tables=shardings),
        layout=Layout(
            sharding_group_size=group,
            placement=placement,
            sync=draw(st.sampled_from(["weights", "gradients", "fully_sharded"])),
        ),
        comms=Comms(forward=draw(st.sampled_from(WIRE)), backward=draw(st.sampled_from(WIRE))),
        execution=Execution(
            pipeline=draw(st.sampled_from(["base", "sparse_dist"])),
            routing=draw(st.sampled_from(["expected", "sampled"])),
            dedup=draw(st.booleans()),
        ),
    )


@settings(max_examples=25)
@given(scenario=scenarios())
def test_what_leaves_network_cards_arrives_at_network_cards(scenario: Scenario) -> None:
    """Over a step the bytes on all links into the network equal the bytes on all links out of it."""
    prediction = Prediction(scenario)
    cluster, moved = prediction.cluster, prediction.trace.link_bytes
    leaves_a_card = np.array([cluster.link_name(link).split("->")[0].count("/nic") for link in range(len(moved))])
    network = cluster.link_kind == "network"
    leaving, arriving = moved[network & (leaves_a_card == 1)].sum(), moved[network & (leaves_a_card == 0)].sum()
    assert np.isclose(leaving, arriving, rtol=1e-9, atol=1e-6)
    assert (leaving > 0) == (cluster.nodes > 1)  # at least the dense all-reduce crosses nodes


@settings(max_examples=25)
@given(scenario=scenarios())
def test_links_move_exactly_what_collectives_and_host_copies_put_on_them(scenario: Scenario) -> None:
    """The engine neither loses nor invents bytes: a link's bytes are the sum over the collectives and copies of the
    step."""
    prediction = Prediction(scenario)
    expected = np.zeros(len(prediction.cluster.link_usable))
    ranks = np.arange(prediction.cluster.size)
    for op in prediction.program(prediction.shown_sync).ops:
        if isinstance(op.work, Compute):
            for copy in op.work.copies:
                copied = prediction.cluster.host_loads(ranks, copy.nbytes, copy.direction)
                expected[copied.links] += copied.nbytes
        if isinstance(op.work, Collective):
            for lowered in lower(prediction.cluster, op.work):
                for phase in lowered.phases:
                    np.add.at(expected, phase.links, phase.nbytes)
    assert np.allclose(prediction.trace.link_bytes, expected, rtol=1e-9, atol=1e-6)


@settings(max_examples=25)
@given(scenario=scenarios())
def test_no_collective_is_faster_than_its_bound_and_no_span_runs_backwards(scenario: Scenario) -> None:
    """Every predicted collective takes at least its closed-form bound; spans end after they start."""
    trace = Prediction(scenario).trace
    assert (trace.end_s >= trace.start_s).all()
    for op in trace.ops:
        if op.collective is not None:
            assert op.collective.time_s >= op.collective.bound_s * (1 - 1e-9)


@settings(max_examples=25)
@given(scenario=scenarios())
def test_the_same_scenario_gives_the_same_trace(scenario: Scenario) -> None:
    """Prediction is a function of the scenario: not a bit differs the second time."""
    first, second = Prediction(scenario).trace, Prediction(scenario).trace
    assert first.step_time_s == second.step_time_s
    assert (first.start_s == second.start_s).all()
    assert (first.end_s == second.end_s).all()


@settings(max_examples=40)
@given(scenario=scenarios())
def test_in_every_all_to_all_what_is_sent_is_received(scenario: Scenario) -> None:
    """Stage by stage and group by group: bytes out over the members equal bytes in, and are those of the matrix."""
    for op in Prediction(scenario).program("weights" if scenario.layout.sync == "weights" else None).ops:
        if not isinstance(op.work, Collective) or op.work.kind != "all_to_all":
            continue
        for group in range(len(op.work.groups)):
            pairs = op.work.traffic_of(group)
            matrix = pairs.to_matrix()
            assert matrix.shape == (op.work.groups.sizes[group],) * 2
            assert (matrix >= 0).all()
            off = matrix - np.diag(np.diag(matrix))
            assert np.allclose(pairs.bytes_out(), off.sum(axis=1), rtol=1e-9, atol=1e-6), op.name
            assert np.allclose(pairs.bytes_in(), off.sum(axis=0), rtol=1e-9, atol=1e-6), op.name
            assert np.isclose(pairs.bytes_out().sum(), pairs.bytes_in().sum(), rtol=1e-9, atol=1e-6), op.name


@settings(max_examples=40)
@given(scenario=scenarios())
def test_what_enters_a_rank_of_a_group_left_another(scenario: Scenario) -> None:
    """Of every collective, lowered to flows: each phase brings to the GPUs exactly what it takes from them."""
    prediction = Prediction(scenario)
    cluster = prediction.cluster
    ends = [cluster.link_name(link).split("->") for link in range(len(cluster.link_usable))]
    out = np.array(["/gpu" in src for src, _ in ends])
    into = np.array(["/gpu" in dst for _, dst in ends])
    for op in prediction.program(prediction.shown_sync).ops:
        if isinstance(op.work, Collective):
            for lowered in lower(cluster, op.work):
                for phase in lowered.phases:
                    left, came = phase.nbytes[out[phase.links]].sum(), phase.nbytes[into[phase.links]].sum()
                    assert np.isclose(left, came, rtol=1e-9, atol=1e-6), (op.name, lowered.algorithm)


@settings(max_examples=40)
@given(scenario=scenarios())
def test_switches_pass_on_what_comes_in(scenario: Scenario) -> None:
    """Switch by switch, the all-to-alls of a step bring as many bytes into every kind of switch as leave it."""
    prediction = Prediction(scenario)
    cluster = prediction.cluster
    moved = np.zeros(len(cluster.link_usable))
    for op in prediction.program(prediction.shown_sync).ops:
        if isinstance(op.work, Collective) and op.work.kind == "all_to_all":
            for lowered in lower(cluster, op.work):
                for phase in lowered.phases:
                    np.add.at(moved, phase.links, phase.nbytes)
    balance: dict[str, float] = defaultdict(float)
    through: dict[str, float] = defaultdict(float)
    for link, nbytes in enumerate(moved.tolist()):
        src, dst = cluster.link_name(link).split("->")
        balance[dst] += nbytes
        balance[src] -= nbytes
        through[dst] += nbytes
    switches = [name for name in balance if "gpu" not in name]
    assert any("nvswitch" in name for name in switches)
    assert any("leaf" in name for name in switches) or cluster.nodes == 1
    for name in switches:
        assert abs(balance[name]) <= 1e-9 * through[name] + 1e-6, name


@settings(max_examples=40)
@given(scenario=scenarios())
def test_reductions_and_gathers_move_at_least_their_closed_form(scenario: Scenario) -> None:
    """All phases together put (n - 1) / n of the size or more on the links, whatever the algorithm."""
    prediction = Prediction(scenario)
    program = prediction.program(prediction.shown_sync)
    for op in program.ops:
        if not isinstance(op.work, Collective) or op.work.kind == "all_to_all":
            continue
        for group, lowered in enumerate(lower(prediction.cluster, op.work)):
            size, nbytes = int(op.work.groups.sizes[group]), op.work.nbytes_of(group)
            moved = sum(float(phase.nbytes.sum()) for phase in lowered.phases)
            assert moved >= nbytes * (size - 1) / size * (1 - 1e-9), op.name

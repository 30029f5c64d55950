"""Bytes are conserved from the plan to the links, whatever the tables, plan, layout and world."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.collectives import lower
from foreshard.simulator.layout import Layout
from foreshard.simulator.prediction import Prediction
from foreshard.simulator.program import Collective
from foreshard.simulator.scenario import ClusterChoice, Execution, Scenario
from foreshard.simulator.sharding import Plan, TableSharding
from foreshard.simulator.workload import Access, Dense, Table, Workload

KINDS = ("data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard")


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
    shardings = tuple(
        (table.name, TableSharding(sharding=draw(st.sampled_from(KINDS[:4] if table.pooling == "none" else KINDS))))
        for table in tables
    )
    return Scenario(
        cluster=ClusterChoice(preset=draw(st.sampled_from(["p4d.24xlarge", "p5.48xlarge"])), nodes=nodes),
        workload=Workload(batch_size=draw(st.integers(1, 64)), tables=tables, dense=Dense(layers=((16, 8, 1),))),
        plan=Plan(tables=shardings),
        layout=Layout(
            sharding_group_size=draw(st.sampled_from([size for size in (8, 16, 32) if size <= 8 * nodes])),
            sync=draw(st.sampled_from(["weights", "gradients"])),
        ),
        execution=Execution(
            pipeline=draw(st.sampled_from(["base", "sparse_dist"])),
            routing=draw(st.sampled_from(["expected", "sampled"])),
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
def test_links_move_exactly_what_the_collectives_put_on_them(scenario: Scenario) -> None:
    """The engine neither loses nor invents bytes: a link's bytes are the sum over the collectives of the step."""
    prediction = Prediction(scenario)
    expected = np.zeros(len(prediction.cluster.link_usable))
    for op in prediction.program(prediction.shown_sync).ops:
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

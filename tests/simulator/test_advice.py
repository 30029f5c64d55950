"""Advice on memory: only changes that were tried and make the plan fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.scenario import ClusterChoice, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Dense, Table, Workload
from foreshard.simulator.results.advice import Advice
from foreshard.simulator.results.report import advice_of, memory_of
from foreshard.simulator.step.prediction import Prediction

GIB = 2.0**30


def scenario(gib_per_table: float, tables: int = 4, nodes: int = 2, **changes: object) -> Scenario:
    rows = round(gib_per_table * GIB / 512)
    named = tuple(Table(name=f"t{i}", num_embeddings=rows, embedding_dim=128) for i in range(tables))
    return Scenario(
        cluster=ClusterChoice(preset="p5.48xlarge", nodes=nodes),
        workload=Workload(batch_size=64, tables=named, dense=Dense(layers=((8, 4), (516, 1)))),
        **changes,
    )


def needed_advice(what: Scenario) -> tuple[Advice, ...]:
    prediction = Prediction(what)
    assert not memory_of(prediction).fits
    return advice_of(prediction)


def test_the_smallest_sharding_group_that_fits_is_named() -> None:
    """4 x 100 GiB in groups of 4 is 100 a rank; in groups of 8 it is 50, so 8 is advised and not 16."""
    found = needed_advice(scenario(100, layout=Layout(sharding_group_size=4)))
    assert found[0].text == "set layout.sharding_group_size = 8 (from 4)"
    smaller = replace(found[0].scenario, layout=Layout(sharding_group_size=4))
    assert not memory_of(Prediction(smaller)).fits


def test_the_heaviest_table_is_sharded_otherwise() -> None:
    plan = Plan(tables=(("t2", TableSharding(sharding="table_wise", ranks=(3,))),))
    found = needed_advice(scenario(100, nodes=1, plan=plan))
    assert found[0].text == "set plan.tables.t2 = row_wise (it is table_wise)"


def test_less_optimizer_state_is_advised_where_the_state_is_the_trouble() -> None:
    found = needed_advice(scenario(60, nodes=1, execution=Execution(optimizer="adam")))
    assert found[0].text == "set execution.optimizer = rowwise_adagrad (from adam)"


def test_nothing_is_advised_that_does_not_help() -> None:
    """40,000 GiB are 78.1 GiB of 79.1 a rank on 64 nodes, too many with the rest: 128 nodes, nothing else."""
    found = needed_advice(scenario(10_000, nodes=1))
    (only,) = found
    assert only.text == "set cluster.nodes = 128 and layout.sharding_group_size = world (from 1, sharded over all)"


@given(
    gib=st.floats(20, 400),
    group=st.sampled_from([1, 2, 4, 8, 16]),
    optimizer=st.sampled_from(["sgd", "rowwise_adagrad", "adagrad", "adam"]),
    sharding=st.sampled_from(["row_wise", "table_wise", "column_wise"]),
)
def test_advice_applied_fits(gib: float, group: int, optimizer: str, sharding: str) -> None:
    """Every scenario that an advice proposes fits when predicted anew, with the peak that the advice states."""
    what = scenario(
        gib,
        layout=Layout(sharding_group_size=group),
        plan=Plan(default=TableSharding(sharding=sharding)),
        execution=Execution(optimizer=optimizer),
    )
    prediction = Prediction(what)
    assume(not memory_of(prediction).fits)
    for advice in advice_of(prediction):
        found = memory_of(Prediction(advice.scenario))
        assert found.fits, advice.text
        assert found.per_rank_bytes[found.peak_rank] == pytest.approx(advice.peak_bytes)


RULED: dict[str, Any] = {
    "schema": 1,
    "cluster": {"preset": "p5.48xlarge", "nodes": 1},
    "workload": {
        "batch_size": 64,
        "tables": [
            {"name": "big one", "num_embeddings": 200 * 2**20, "embedding_dim": 256, "data_type": "fp32"},
            {"name": "small", "num_embeddings": 2**20, "embedding_dim": 256, "data_type": "fp16"},
            {"name": "other", "num_embeddings": 50 * 2**20, "embedding_dim": 256},
        ],
        "dense": {"layers": [[8, 4], [772, 1]]},
    },
    "plan": {
        "default": "table_wise",
        "rules": [{"match": "*one", "sharding": "table_wise"}],
        "tables": {"small": "data_parallel"},
    },
    "execution": {"optimizer": "adagrad"},
}
CHANGES: list[tuple[str, ...]] = [
    (),
    ("layout.sharding_group_size=2", "plan.rules=[]", "plan.default=row_wise", "execution.optimizer=rowwise_adagrad"),
    (
        "layout.groups=[[0, 1], [2, 3, 4, 5, 6, 7]]",
        "plan.rules=[]",
        "plan.default=row_wise",
        "execution.optimizer=sgd",
        "layout.sync=gradients",
    ),
    ("layout.sharding_group_size=4", "layout.sync_interval=10", "execution.optimizer=rowwise_adagrad"),
    ("plan.rules=[]", "plan.tables={}", "plan.default=column_wise", "workload.all_tables.num_embeddings=120000000"),
    ("workload.all_tables.num_embeddings=180000000", "plan.rules=[]", "plan.tables={}", "plan.default=row_wise"),
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_what_an_advice_says_to_set_makes_the_scenario_it_tried(changes: tuple[str, ...]) -> None:
    """Set on the file, with its rules, exceptions and groups, it gives the plan and memory that the advice states."""
    before = Prediction(read_scenario(RULED, changes))
    found = advice_of(before)
    assert found
    for advice in found:
        again = read_scenario(RULED, (*changes, *advice.overrides))
        tried, now = Prediction(advice.scenario), Prediction(again)
        assert again.layout == advice.scenario.layout
        assert [table.data_type for table in again.workload.tables] == [
            table.data_type for table in advice.scenario.workload.tables
        ]
        assert [(table.sharding, table.owners.tolist()) for table in now.sharded] == [
            (table.sharding, table.owners.tolist()) for table in tried.sharded
        ]
        assert memory_of(now).fits
        for override in advice.overrides[:3]:
            key, _, value = override.partition("=")
            assert f"{key} = {value}" in advice.text

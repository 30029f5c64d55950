"""The report: the JSON others build on, the text a person reads, and sums that must hold."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.program import STAGES
from foreshard.simulator.job.scenario import ClusterChoice, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, Dense, Table, Workload
from foreshard.simulator.results.report import Report, report
from foreshard.simulator.step.prediction import predict
from foreshard.topologies.errors import BoundViolationError

TABLES = (
    Table(name="user", num_embeddings=50_000, embedding_dim=64, access=Access(zipf=1.2, order="by_frequency")),
    Table(name="item", num_embeddings=20_000, embedding_dim=64, pooling_factor=5.0),
    Table(name="tiny", num_embeddings=3, embedding_dim=64),
)
PLAN = Plan(tables=(("item", TableSharding(sharding="table_wise")), ("tiny", TableSharding(sharding="data_parallel"))))


def scenario(nodes: int = 2, **changes: object) -> Scenario:
    dense = Dense(layers=((13, 64), (256, 128, 1)))
    workload = Workload(batch_size=512, tables=TABLES, dense=dense)
    return Scenario(
        cluster=ClusterChoice(preset="p5.48xlarge", nodes=nodes), workload=workload, plan=PLAN, name="small", **changes
    )


@pytest.fixture(scope="module")
def flat() -> Report:
    return report(predict(scenario()), planner=True)


def two_d(sync: str, interval: int = 1) -> Report:
    layout = Layout(sharding_group_size=8, sync=sync, sync_interval=interval)
    return report(predict(scenario(layout=layout)))


def test_json_has_every_key_that_was_promised(flat: Report) -> None:
    told = json.loads(json.dumps(flat.to_dict(), allow_nan=False))
    assert {
        "step_time_s", "step_time_interval_s", "samples_per_s", "stages", "collectives", "imbalance", "memory",
        "assumptions", "provenance",
    } <= set(told)  # fmt: skip
    assert list(told["stages"]) == list(STAGES)
    assert all({"time_s", "exposed_s"} <= set(stage) for stage in told["stages"].values())
    row = {"name", "kind", "group_size", "groups", "max_bytes_out", "max_bytes_in", "time_s", "bound_s", "ratio"}
    assert told["collectives"]
    assert all(row <= set(collective) for collective in told["collectives"])
    assert {"fits", "hbm_cap_bytes", "peak_rank", "per_rank_bytes", "items"} <= set(told["memory"])
    assert all({"name", "value", "unit", "source"} == set(item) for item in told["assumptions"])
    assert told["step_time_interval_s"] is None  # nothing was measured, so nothing is claimed
    assert (told["stage_intervals_s"], told["profile"]) == ({}, None)


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
@pytest.mark.parametrize("group", [None, 8])
@pytest.mark.parametrize(("sync", "interval"), [("weights", 1), ("weights", 5), ("gradients", 1)])
def test_stages_compute_and_idle_sum_to_the_step(pipeline: str, group: int | None, sync: str, interval: int) -> None:
    layout = Layout(sharding_group_size=group, sync=sync, sync_interval=interval)
    found = report(predict(scenario(layout=layout, execution=Execution(pipeline=pipeline))))
    told = found.to_dict()
    exposed = sum(stage["exposed_s"] for stage in told["stages"].values())
    assert told["compute_s"] + exposed + told["idle_s"] == pytest.approx(told["step_time_s"], rel=1e-9)
    assert told["samples_per_s"] == pytest.approx(512 * 16 / told["step_time_s"])


def test_equal_inputs_give_equal_bytes() -> None:
    first, second = (json.dumps(report(predict(scenario()), planner=True).to_dict()) for _ in range(2))
    assert first == second


def test_provenance_changes_with_the_scenario_and_not_with_the_clock(flat: Report) -> None:
    other = report(predict(scenario(execution=Execution(seed=1))))
    assert dict(flat.provenance)["scenario_sha256"] != dict(other.provenance)["scenario_sha256"]
    assert dict(flat.provenance)["cluster_sha256"] == dict(other.provenance)["cluster_sha256"]


def test_every_assumption_has_a_source(flat: Report) -> None:
    assert all(item.source for item in flat.assumptions)


def test_the_hot_table_is_named_with_its_rank_and_factor(flat: Report) -> None:
    """The hottest rows of 'user' are its first: with ranges, the first rank owns most of its ids."""
    hot = flat.hot_tables[0]
    assert (hot.table, hot.rank) == ("user", 0)
    assert hot.factor == pytest.approx(16 * hot.share)
    assert "hot: table 'user'" in flat.to_text()


def test_the_average_step_of_a_2d_layout(flat: Report) -> None:
    report_k = two_d("weights", 5)
    sync = report_k.sync
    assert sync is not None
    assert report_k.step_time_s == pytest.approx((sync.weights_step_s + 4 * sync.plain_step_s) / 5)
    assert two_d("gradients").step_time_s == pytest.approx(sync.gradients_step_s)
    assert flat.sync is None


def test_a_synchronisation_every_few_steps_is_listed_with_its_interval() -> None:
    rows = {row.name: row.every for row in two_d("weights", 5).collectives}
    assert rows["replica_sync.weights"] == 5
    assert rows["dense_all_reduce"] == 1
    assert {row.name: row.every for row in two_d("weights").collectives}["replica_sync.weights"] == 1


def test_both_placements_of_a_2d_layout_are_set_side_by_side() -> None:
    """Each placement's figures are those of its own report, whichever of the two was asked for."""
    reports = [
        report(predict(scenario(layout=Layout(sharding_group_size=8, placement=placement))))
        for placement in ("contiguous", "interleaved")
    ]
    told = [item.to_dict() for item in reports]
    assert told[0]["placements"] == told[1]["placements"]
    for item in told:
        name = "contiguous" if "contiguous" in item["scenario"]["layout"] else "interleaved"
        assert item["placements"][name]["weights_step_s"] == item["sync"]["weights_step_s"]
    assert reports[0].placements is not None
    assert reports[0].placements.sentence() in " ".join(reports[0].to_text().split())


def test_what_ifs_can_be_left_out() -> None:
    found = report(predict(scenario(layout=Layout(sharding_group_size=8))), what_if=False)
    assert found.placements is None


def test_adagrads_scale_is_named_for_row_wise_adagrad_only() -> None:
    layout = Layout(sharding_group_size=8)
    with_it, without = (
        report(predict(scenario(layout=layout, execution=Execution(optimizer=optimizer))), what_if=False).to_text()
        for optimizer in ("rowwise_adagrad", "sgd")
    )
    assert "eta / sqrt(v / 2 + eps)" in with_it
    assert "eta / sqrt" not in without


def test_the_planner_stands_beside_the_prediction_with_reasons(flat: Report) -> None:
    assert flat.planner is not None
    told = flat.to_dict()["planner"]
    assert told["default"]["rating_s"] > 0
    assert told["machine"]["rating_s"] < told["default"]["rating_s"]  # H100 and EFA against V100-era constants
    text = " ".join(told["reasons"])
    assert all(word in text for word in ("latency", "id exchange", "host boundary", "skew", "overlap"))


def test_text_is_short_enough_to_read(flat: Report) -> None:
    """The answer stands in the first lines; the rest is two pages, with the planner."""
    lines = flat.to_text().splitlines()
    assert [line.split("  ")[0] for line in lines[1:8]] == [
        "step time", "throughput", "host", "machine", "layout", "pipeline", "memory",
    ]  # fmt: skip
    assert max(map(len, lines)) <= 160
    assert len(lines) <= 130
    assert "DOES NOT FIT" not in flat.to_text()


def test_a_plan_that_does_not_fit_is_predicted_and_marked() -> None:
    big = replace(TABLES[0], num_embeddings=4_000_000_000)
    what = scenario(nodes=1)
    what = replace(what, workload=replace(what.workload, tables=(big, *TABLES[1:])))
    found = report(predict(what))
    assert found.step_time_s > 0
    told = found.to_dict()
    assert told["memory"]["fits"] is False
    assert "DOES NOT FIT" in found.to_text()
    assert told["advice"]


def test_html_escapes_names() -> None:
    tables = tuple(replace(table, name=table.name.replace("user", "<b>user</b>")) for table in TABLES)
    what = scenario()
    html = report(predict(replace(what, workload=replace(what.workload, tables=tables))))._repr_html_()
    assert "<b>user" not in html
    assert "&lt;b&gt;user" in html


def test_a_bare_trace_tells_its_stages(made_step) -> None:  # type: ignore[no-untyped-def]
    found = report(made_step.trace)
    assert found.breakdown.rank == 5
    assert found.samples_per_s is None
    assert found.memory is None
    json.dumps(found.to_dict(), allow_nan=False)
    assert "Memory" not in found.to_text()


def test_a_collective_below_its_bound_is_a_bug(made_step) -> None:  # type: ignore[no-untyped-def]
    trace = made_step.trace
    ops = tuple(
        replace(op, collective=op.collective and replace(op.collective, bound_s=10.0 * op.collective.time_s))
        for op in trace.ops
    )
    with pytest.raises(BoundViolationError, match="input_dist"):
        report(replace(trace, ops=ops))


def test_groups_of_one_rank_have_no_lookup_exchange_to_speak_of() -> None:
    """Every rank holds all tables: what remains of an exchange with oneself takes no time over links."""
    found = report(predict(scenario(nodes=1, layout=Layout(sharding_group_size=1))))
    assert found.all_to_all_s < 1e-4
    assert found.memory is not None
    assert found.memory.weight_bytes.tolist() == [4.0 * 64 * (50_000 + 20_000 + 3)] * 8

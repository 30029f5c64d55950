"""Sweeps: rows of a grid in order, scaled against the first, kept on disk, with impossible ones marked."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.job.scenario import ClusterChoice, Scenario
from foreshard.simulator.job.workload import Dense, Table, Workload
from foreshard.simulator.results import sweep
from foreshard.simulator.results.report import report
from foreshard.simulator.results.sweep import Comparison, combinations, compare, parse_vary
from foreshard.simulator.results.sweep_store import RowStore, inputs_sha256, store_beside
from foreshard.simulator.step.prediction import predict
from foreshard.topologies.errors import InputError

SMALL = Scenario(
    cluster=ClusterChoice(preset="p5.48xlarge", nodes=1),
    workload=Workload(
        batch_size=256,
        tables=(Table(name="t", num_embeddings=10_000, embedding_dim=32),),
        dense=Dense(layers=((13, 32), (64, 16, 1))),
    ),
    name="small",
)
GRID = {"cluster.nodes": [1, 2], "layout.sharding_group_size": [8, None]}


@pytest.fixture(scope="module")
def grid() -> Comparison:
    return compare(SMALL, GRID)


def test_rows_come_in_grid_order_with_the_last_key_fastest(grid: Comparison) -> None:
    chosen = [(row["cluster.nodes"], row["layout.sharding_group_size"]) for row in grid.rows]
    assert chosen == [(1, 8), (1, "world"), (2, 8), (2, "world")]


def test_every_row_tells_what_was_promised(grid: Comparison) -> None:
    promised = ["step_time_s", "samples_per_s", "speedup", "scaling_efficiency", "all_to_all_s", "memory_fits"]
    for row in json.loads(json.dumps(grid.rows, allow_nan=False)):
        assert [name for name in row if name in promised] == promised


def test_a_row_is_the_report_of_its_scenario(grid: Comparison) -> None:
    two = Scenario(cluster=ClusterChoice(preset="p5.48xlarge", nodes=2), workload=SMALL.workload, name="small")
    told = report(predict(two))
    assert grid.rows[3]["step_time_s"] == told.step_time_s
    assert grid.rows[3]["all_to_all_s"] == told.all_to_all_s


def test_efficiency_is_throughput_over_the_first_times_the_ranks(grid: Comparison) -> None:
    first, last = grid.rows[0], grid.rows[3]
    assert (first["speedup"], first["scaling_efficiency"]) == (1.0, 1.0)
    assert last["speedup"] == pytest.approx(last["samples_per_s"] / first["samples_per_s"])
    assert last["scaling_efficiency"] == pytest.approx(last["samples_per_s"] / (first["samples_per_s"] * 16 / 8))


def test_a_combination_that_cannot_be_is_a_row_with_its_reason() -> None:
    found = compare(SMALL, {"layout.sharding_group_size": [7, 8]})
    bad, good = found.rows
    assert bad["problem"].startswith("layout.sharding_group_size = 7 does not divide the world of 8 ranks")
    assert bad["step_time_s"] is None
    assert good["speedup"] == 1.0
    assert found.finished == (good,)
    assert "cannot be: layout.sharding_group_size = 7" in found.to_text()


def test_a_long_reason_stands_in_full_below_the_table_and_in_csv() -> None:
    """Nothing is cut but the cell of the table."""
    found = compare(SMALL, {"layout.sharding_group_size": [7, 8], "workload.batch_size": [1, 2], "cluster.nodes": [16]})
    reason = found.rows[0]["problem"]
    assert reason.endswith("use one of [1, 2, 4, 8, 16, 32, 64, 128]")
    assert " ".join(found.to_text().split()).count(f"cannot be: {reason}") == 1
    assert next(iter(csv.DictReader(io.StringIO(found.to_csv()))))["problem"] == reason


TYPOS: dict[str, tuple[list[object], str]] = {
    "comms.forward": (["fp32", "fp9"], 'comms.forward = "fp9"'),
    "cluster.preset": (["p5.48xlarge", "nope"], 'cluster.preset = "nope"'),
    "workload.batch_size": ([64, -1], "workload.batch_size = -1"),
    "workload.tables.t.embedding_dim": ([32, 0], "workload.tables.t.embedding_dim = 0"),
    "workload.dense.layers": (["[[8, 1]]", "[[8]]"], "workload.dense.layers[0] = [8]"),
    "plan.default": (["row_wise", "row_wse"], 'plan.default.sharding = "row_wse"'),
    "layout.placement": (["contiguous", "spread"], 'layout.placement = "spread"'),
    "execution.seed": ([1, "x"], 'execution.seed = "x"'),
}


def test_all_values_that_are_bad_by_themselves_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo in a grid is a mistake, told once and before any work, however many combinations hold it."""
    monkeypatch.setattr(sweep, "_measures", lambda scenario: pytest.fail("predicted"))
    grid = {key: values for key, (values, _) in TYPOS.items()} | {"layout.sharding_group_size": [8, 7]}
    with pytest.raises(InputError) as caught:
        compare(SMALL, grid)
    assert len(caught.value.problems) == len(TYPOS)
    for _, expected in TYPOS.values():
        assert sum(problem.startswith(expected) for problem in caught.value.problems) == 1


@pytest.mark.parametrize(
    "vary",
    [
        {"layout.sharding_group_size": [8, 16]},
        {"cluster.nodes": [1, 2], 'cluster.degrade."node1/nic0->*"': [0.5]},
        {"plan.default.ranks": ["[0]", "[9]"], "plan.default.sharding": ["table_wise"]},
        {"layout.sync": ["weights", "gradients"], "layout.sync_interval": [10]},
        {"workload.tables.t.num_embeddings": [1000, 1_000_000_000_000]},
    ],
    ids=str,
)
def test_what_only_this_combination_cannot_be_is_a_row(vary: dict[str, list[object]]) -> None:
    found = compare(SMALL, vary)
    assert sorted("problem" in row for row in found.rows) == [False, True]


@pytest.mark.parametrize(
    ("vary", "problem"),
    [
        ({"layout.sharding_group_size": [7, 5]}, "no combination can be predicted: 2 mistakes"),
        ({"cluster.nods": [1]}, "cluster.nods"),
        ({}, "nothing to vary"),
        ({"cluster.nodes": []}, "cluster.nodes has no values"),
        (("cluster.nodes",), "not key=value"),
        (("cluster.nodes=",), "not key=value"),
        (("cluster.nodes=1", "cluster.nodes=2"), "varied twice"),
    ],
)
def test_a_grid_without_any_good_row_is_refused(vary: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        compare(SMALL, vary)  # type: ignore[arg-type]


def test_a_scenario_that_is_bad_by_itself_is_refused_before_the_grid() -> None:
    with pytest.raises(InputError, match=r"cluster\.nodes"):
        compare(SMALL, {"workload.batch_size": [1, 2]}, overrides=["cluster.nodes=-1"])


def test_commas_in_tables_lists_and_quotes_do_not_separate() -> None:
    key, values = parse_vary('workload.all_tables.access={ zipf = 1.1, shift = 2 },{ zipf = 0 }, "a,b" ,[1,2]')
    assert key == "workload.all_tables.access"
    assert values == ["{ zipf = 1.1, shift = 2 }", "{ zipf = 0 }", '"a,b"', "[1,2]"]


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_combinations_are_all_and_each_once(sizes: list[int]) -> None:
    vary = {f"k{i}": [str(value) for value in range(size)] for i, size in enumerate(sizes)}
    found = [tuple(chosen.values()) for chosen in combinations(vary)]
    assert len(set(found)) == len(found)
    product = 1
    for size in sizes:
        product *= size
    assert len(found) == product
    assert found == sorted(found)


def test_finished_rows_are_taken_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = store_beside(tmp_path / "grid.csv")
    first = compare(SMALL, GRID, keep=keep)
    assert keep.name == "grid.csv.rows.jsonl"

    def never(scenario: Scenario) -> str:
        raise AssertionError(f"predicted again: {scenario.name}")

    monkeypatch.setattr(sweep, "_measures", never)
    assert compare(SMALL, GRID, keep=keep) == first
    with pytest.raises(AssertionError, match="predicted again"):
        compare(SMALL, GRID, overrides=["workload.batch_size=128"], keep=keep)


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = tmp_path / "rows.jsonl"
    whole = compare(SMALL, GRID, keep=keep)
    lines = keep.read_text().splitlines()
    keep.write_text("\n".join(lines[:2]) + "\n" + lines[2][: len(lines[2]) // 2])
    predicted: list[str] = []
    again = sweep._measures
    monkeypatch.setattr(sweep, "_measures", lambda scenario: predicted.append(scenario.name) or again(scenario))
    assert compare(SMALL, GRID, keep=keep) == whole
    assert len(predicted) == len(lines) - 2
    assert compare(SMALL, GRID, keep=keep) == whole
    assert len(predicted) == len(lines) - 2


MEASURES: dict[str, Any] = {
    "ranks": 8, "step_time_s": 1.5, "samples_per_s": 10.0, "all_to_all_s": 0.5, "memory_fits": True,
    "memory_peak_bytes": 1e9,
}  # fmt: skip


@pytest.mark.parametrize(
    "entry",
    [
        "[]", "1", "null", "{}", '"inputs"', "[" * 50_000,
        '{"inputs": "a", "measures": {}}',
        '{"inputs": "a", "measures": []}',
        '{"inputs": "a", "measures": null}',
        '{"inputs": ["a"], "measures": {}}',
        *(json.dumps({"inputs": "a", "measures": {**MEASURES, name: 0}}) for name in ("ranks", "samples_per_s")),
        *(json.dumps({"inputs": "a", "measures": {**MEASURES, name: value}})
          for name in MEASURES for value in ("1", None, [], -1, float("nan"))),
    ],
)  # fmt: skip
def test_a_line_that_is_no_row_is_passed_over(entry: str, tmp_path: Path) -> None:
    """Whatever stands in a file of finished rows: a row that lacks a measure is predicted anew."""
    path = tmp_path / "rows.jsonl"
    path.write_text(entry + "\n")
    store = RowStore(path)
    assert store.get("a") is None
    store.put("a", MEASURES)
    assert RowStore(path).get("a") == MEASURES


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path)])
def test_finished_rows_that_cannot_be_kept_are_told_before_any_work(
    make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder or a broken link in the place of the rows file is refused in a sentence that names it."""
    make(tmp_path / "rows.jsonl")
    monkeypatch.setattr(sweep, "_measures", lambda scenario: pytest.fail("predicted"))
    with pytest.raises(InputError, match=r"rows\.jsonl: "):
        compare(SMALL, GRID, keep=tmp_path / "rows.jsonl")


def test_rows_on_disk_belong_to_their_inputs(tmp_path: Path) -> None:
    store = RowStore(tmp_path / "rows.jsonl")
    store.put("a", MEASURES)
    assert RowStore(tmp_path / "rows.jsonl").get("a") == MEASURES
    assert store.get("b") is None
    other = Scenario(cluster=SMALL.cluster, workload=SMALL.workload, name="other")
    assert inputs_sha256(SMALL) == inputs_sha256(SMALL) != inputs_sha256(other)


def test_without_joblib_the_grid_is_predicted_one_by_one(monkeypatch: pytest.MonkeyPatch, grid: Comparison) -> None:
    monkeypatch.setattr(sweep, "find_spec", lambda name: None)
    assert compare(SMALL, GRID, jobs=2) == grid


def test_processes_give_the_same_rows(grid: Comparison) -> None:
    pytest.importorskip("joblib")
    assert compare(SMALL, GRID, jobs=2) == grid


def test_when_a_process_dies_the_rest_is_predicted_here(monkeypatch: pytest.MonkeyPatch, grid: Comparison) -> None:
    def dies(work, scenarios, jobs):  # type: ignore[no-untyped-def]
        yield work(scenarios[0])
        raise BrokenExecutor("a worker was killed")

    monkeypatch.setattr(sweep, "_in_processes", dies)
    assert compare(SMALL, GRID, jobs=2) == grid


def test_rows_as_frame_and_as_csv(grid: Comparison) -> None:
    frame = grid.to_frame()
    assert list(frame["cluster.nodes"]) == [1, 1, 2, 2]
    read = list(csv.DictReader(io.StringIO(grid.to_csv())))
    assert [float(row["step_time_s"]) for row in read] == [row["step_time_s"] for row in grid.rows]
    assert "speed-up" in grid.to_text()
    assert "<table>" in grid._repr_html_()


def test_scaling_is_shown_only_where_ranks_vary() -> None:
    """Percent of ideal compares more ranks with fewer; among equal ranks it would only repeat the speed-up."""
    batches = compare("mlperf-dcnv2-p5", ["workload.batch_size=256,512"], ["cluster.nodes=1"])
    nodes = compare("mlperf-dcnv2-p5", ["cluster.nodes=1,2"])
    assert "of ideal" not in batches.to_text()
    assert "of ideal" in nodes.to_text()

"""The simulator's commands: what they print, what they write, and how they refuse."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foreshard.simulator import commands, prediction, sweep
from foreshard.topologies import cli

SCENARIO = """
schema = 1
description = "two tables"
[cluster]
preset = "p5.48xlarge"
nodes = 2
[workload]
batch_size = 256
[[workload.tables]]
name = "user_id"
num_embeddings = 100_000
embedding_dim = 64
access = { zipf = 1.05 }
[[workload.tables]]
name = "item_id"
num_embeddings = 50_000
embedding_dim = 64
pooling_factor = 5
[workload.dense]
layers = [[128, 64, 1]]
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(SCENARIO)
    return str(path)


class Foreshard:
    """Runs the command and keeps what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        assert cli.run(list(arguments)) == code
        said = self.capsys.readouterr()
        assert (said.err if code == 0 else said.out) == ""
        return said.out if code == 0 else said.err

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def foreshard(capsys: pytest.CaptureFixture[str]) -> Foreshard:
    return Foreshard(capsys)


def test_predict_prints_a_report_with_the_seven_stages(foreshard: Foreshard, job: str) -> None:
    text = foreshard("predict", job)
    for word in ("step time", "samples/s", "lookup_routing", "vector_return", "dense_gradient_sync", "fits", "Assumed"):
        assert word in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


PROMISED = {
    "step_time_s", "step_time_interval_s", "samples_per_s", "stages", "collectives", "imbalance", "memory",
    "assumptions", "provenance",
}  # fmt: skip


def test_predict_json_has_the_promised_keys(foreshard: Foreshard, job: str) -> None:
    told = foreshard.json("predict", job)
    assert set(told) >= PROMISED
    assert set(told["stages"]["vector_return"]) >= {"time_s", "exposed_s"}
    assert set(told["collectives"][0]) >= {
        "name", "kind", "group_size", "groups", "max_bytes_out", "max_bytes_in", "time_s", "bound_s",
    }  # fmt: skip
    assert set(told["memory"]) >= {"fits", "hbm_cap_bytes", "peak_rank", "per_rank_bytes", "items"}
    assert set(told["assumptions"][0]) == {"name", "value", "unit", "source"}
    assert told["samples_per_s"] == pytest.approx(16 * 256 / told["step_time_s"])


def test_set_changes_the_prediction(foreshard: Foreshard, job: str) -> None:
    told = foreshard.json("predict", job, "--set", "cluster.nodes=1", "--set", "workload.batch_size=512")
    assert told["samples_per_s"] == pytest.approx(8 * 512 / told["step_time_s"])


def test_the_same_command_prints_the_same_bytes(foreshard: Foreshard, job: str) -> None:
    assert foreshard("predict", job, "--json") == foreshard("predict", job, "--json")


def test_predict_takes_a_shipped_name(foreshard: Foreshard) -> None:
    told = foreshard.json("predict", "capacity-640gb")
    assert not told["memory"]["fits"]
    assert told["advice"]


@pytest.mark.parametrize("size", ["8", "world"])
def test_trace_writes_a_timeline_for_every_rank(foreshard: Foreshard, job: str, tmp_path: Path, size: str) -> None:
    foreshard("predict", job, "--trace", str(tmp_path / "out"), "--set", f"layout.sharding_group_size={size}")
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) == 16
    assert json.loads(files[0].read_text())["traceEvents"]


def test_plots_are_written_as_png(foreshard: Foreshard, job: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    foreshard("predict", job, "--plot", str(tmp_path / "step.png"))
    foreshard("compare", job, "--vary", "cluster.nodes=1,2", "--plot", str(tmp_path / "scaling.png"))
    for name in ("step.png", "scaling.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_compare_runs_the_grid_against_its_first_row(foreshard: Foreshard, job: str) -> None:
    rows = foreshard.json("compare", job, "--vary", "cluster.nodes=1,2", "--vary", "layout.sharding_group_size=8,world")
    assert [(row["cluster.nodes"], row["layout.sharding_group_size"]) for row in rows] == [
        (1, 8), (1, "world"), (2, 8), (2, "world"),
    ]  # fmt: skip
    assert all(
        set(row) >= {"step_time_s", "samples_per_s", "speedup", "scaling_efficiency", "all_to_all_s", "memory_fits"}
        for row in rows
    )
    assert rows[0]["speedup"] == rows[0]["scaling_efficiency"] == 1.0
    assert rows[2]["speedup"] == pytest.approx(rows[2]["samples_per_s"] / rows[0]["samples_per_s"])


def test_compare_writes_the_rows_it_prints(foreshard: Foreshard, job: str, tmp_path: Path) -> None:
    rows = foreshard.json("compare", job, "--vary", "workload.batch_size=64,128", "--csv", str(tmp_path / "rows.csv"))
    with (tmp_path / "rows.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["step_time_s"]) for row in written] == [row["step_time_s"] for row in rows]


def test_presets_lists_machines_table_sets_and_scenarios(foreshard: Foreshard) -> None:
    told = foreshard.json("presets")
    names = {kind: {row["name"] for row in rows} for kind, rows in told.items()}
    assert names["machines"] >= {"p4d.24xlarge", "p5.48xlarge", "dgx-a100", "dgx-h100"}
    assert names["table_sets"] >= {"mlperf-dcnv2", "criteo-kaggle", "criteo-1tb", "avazu", "production-like"}
    assert names["scenarios"] >= {"mlperf-dcnv2-p5", "pinterest-like", "capacity-640gb"}
    text = foreshard("presets")
    assert all(name in text for kind in names.values() for name in kind)


def test_a_bad_scenario_ends_with_2_and_every_mistake(foreshard: Foreshard, job: str) -> None:
    Path(job).write_text(SCENARIO.replace("nodes = 2", "nodes = 0").replace("batch_size", "batchsize"))
    text = foreshard("predict", job, code=2)
    assert text.startswith(f"error: {job}: 3 mistakes:\n  - ")
    assert "Traceback" not in text
    assert foreshard("compare", job, "--vary", "cluster.nodes=1,2", code=2) == text


REFUSALS = {
    "predict --plot nowhere/p.png": "the folder nowhere does not exist",
    "predict --plot p.gif": "plots are written as .pdf, .png, .svg",
    "predict --trace job.toml": "is a file: name a folder",
    "compare --vary cluster.nodes=1,2 --csv nowhere/rows.csv": "the folder nowhere does not exist",
    "compare --vary cluster.nodes=1,2 --plot .": "name a file",
    "compare --vary cluster.preset=p5.48xlarge,dgx-a100 --plot p.png": "needs a key that takes numbers",
    "compare --vary cluster.nodes": "is not key=value,value",
}


@pytest.mark.parametrize("line", REFUSALS)
def test_what_cannot_be_written_is_refused_before_the_work(
    line: str, foreshard: Foreshard, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object) -> None:
        raise AssertionError("the work has started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prediction, "simulate_program", work)
    monkeypatch.setattr(sweep, "_measures", work)
    command, *rest = line.split()
    assert REFUSALS[line] in foreshard(command, job, *rest, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_a_failure_in_the_work_leaves_no_file(
    foreshard: Foreshard, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "simulate_program", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.run(["predict", job, "--plot", str(tmp_path / "p.png")])
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_commands_are_named_as_promised() -> None:
    assert {command.name for command in commands.COMMANDS} >= {"predict", "compare", "presets", "import-plan"}


def test_the_command_line_does_not_import_heavy_packages() -> None:
    code = (
        "import sys, foreshard.simulator.commands, foreshard.simulator.reading;"
        "print([name for name in ('torch', 'cupy', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_reader_that_stops_early_sees_no_traceback(job: str) -> None:
    script = f"{sys.executable} -c 'from foreshard.topologies.cli import main; main()' predict {job} | head -1"
    done = subprocess.run(script, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1

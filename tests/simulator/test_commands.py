"""The simulator's commands: what they print, what they write, and how they refuse."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foreshard.simulator import commands
from foreshard.simulator.results import sweep
from foreshard.simulator.step import prediction
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
        assert (said.out if code else "" if "--trace" in arguments else said.err) == ""
        self.said = said.err
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
    assert foreshard.said == f"{tmp_path / 'out'}: timelines of all 16 ranks\n"


def test_timelines_of_an_earlier_run_give_way(foreshard: Foreshard, job: str, tmp_path: Path) -> None:
    """Ranks of two runs never lie beside each other; what is not foreshard's stays."""
    out = tmp_path / "out"
    in_2d = ["--set", "layout.sharding_group_size=8", "--set", "layout.sync_interval=10"]
    foreshard("predict", job, "--trace", str(out), *in_2d)
    (out / "notes.txt").write_text("mine")
    assert len(list(out.glob("rank*"))) == len(list((out / "sync_step").iterdir())) == 16
    foreshard("predict", job, "--trace", str(out), "--ranks", "0,3", "--set", "cluster.nodes=1")
    assert sorted(path.name for path in out.iterdir()) == [
        "notes.txt", "rank0000.pt.trace.json", "rank0003.pt.trace.json",
    ]  # fmt: skip
    assert "2 of 8 ranks, 0 (asked for), 3 (asked for); 30 timelines of an earlier run removed" in foreshard.said


@pytest.mark.parametrize("place", ["out", "out/sync_step"])
def test_a_timeline_of_someone_else_is_not_replaced(foreshard: Foreshard, job: str, tmp_path: Path, place: str) -> None:
    theirs = tmp_path / place / "rank0001.pt.trace.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"traceEvents": []}')
    said = foreshard("predict", job, "--trace", str(tmp_path / "out"), code=2)
    assert "holds rank0001.pt.trace.json, which foreshard did not write: name another folder" in said
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix == ".json"] == [theirs]


def test_a_step_that_synchronises_now_and_then_is_written_beside_the_plain_one(
    foreshard: Foreshard, job: str, tmp_path: Path
) -> None:
    """The other step lies in sync_step, moves the replicas' weights and lasts longer; each file says which it is."""
    out = tmp_path / "out"
    changes = ["layout.sharding_group_size=8", "layout.sync_interval=10"]
    text = foreshard("predict", job, "--trace", str(out), *(part for change in changes for part in ("--set", change)))
    plain, other = (json.loads((folder / "rank0000.pt.trace.json").read_text()) for folder in (out, out / "sync_step"))
    assert plain["foreshard"]["step"] == "a step without replica synchronisation, 9 of 10"
    assert other["foreshard"]["step"] == "a step that averages replicas, 1 of 10"
    assert other["foreshard"]["step_time_us"] > plain["foreshard"]["step_time_us"]
    stages = [
        {event["args"].get("Process Group Description") for event in one["traceEvents"]} for one in (plain, other)
    ]
    assert len(stages[1] - stages[0]) == 1  # the replica group
    assert "a timeline and its plot show the step without synchronisation" in " ".join(text.split())
    assert "a step without replica synchronisation, 9 of 10; sync_step: a step that averages" in foreshard.said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--ranks", "0"], "give --trace DIR too"),
        (["--trace", "new", "--ranks", "0,x"], "is not a list of ranks: write all, or numbers such as 0,5"),
        (["--trace", "new", "--ranks", "16,-1"], "ranks [16, -1] are not in the trace: it has ranks 0 to 15"),
        (["--trace", ""], "is empty: give a name"),
        (["--plot", ""], "is empty: give a name"),
        (["--trace", "a/b", "--plot", "none/x.png"], "none/x.png: the folder none does not exist"),
        (["--trace", "new", "--set", "workload.dense.data_type=fp8", "--set", "cluster.preset=p4d.24xlarge"], "fp8"),
        (["--trace", "new", "--set", "workload.dense={ parameters = 1 }"], "forward_flops_per_sample"),
    ],
)
def test_what_is_refused_leaves_no_folder(
    foreshard: Foreshard, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prediction, "simulate_program", lambda *_, **__: pytest.fail("simulated"))
    assert why in foreshard("predict", job, *arguments, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_mistakes_of_all_outputs_are_told_at_once(foreshard: Foreshard, job: str, tmp_path: Path) -> None:
    said = foreshard("predict", job, "--trace", job, "--plot", str(tmp_path / "x.bmp"), "--ranks", "99", code=2)
    assert said.startswith("error: 3 mistakes:")


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
    monkeypatch.setattr(prediction, "simulate_program", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.run(["predict", job, "--plot", str(tmp_path / "p.png")])
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_commands_are_named_as_promised() -> None:
    assert {command.name for command in commands.COMMANDS} >= {"predict", "compare", "presets", "import-plan"}


def test_the_command_line_does_not_import_heavy_packages() -> None:
    code = (
        "import sys, foreshard.simulator.commands, foreshard.simulator.files.reading;"
        "print([name for name in ('torch', 'cupy', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_reader_that_stops_early_sees_no_traceback(job: str) -> None:
    script = f"{sys.executable} -c 'from foreshard.topologies.cli import main; main()' predict {job} | head -1"
    done = subprocess.run(script, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1

"""`foreshard run` from the command line: a scenario trained for real, told, drawn, and refused where it must be."""

from __future__ import annotations

import json
import math
import signal
import sys
import time

import pytest

from foreshard.calibration.runner.memory import available_bytes

SMALL = ("--set", "workload.batch_size=32", "--set", "workload.all_tables.num_embeddings=1000")
RUN = ("-c", "import sys; from foreshard.topologies.cli import main; sys.argv[0] = 'foreshard'; main()", "run")


def foreshard_run(ranks, *arguments):
    """(Exit code, what it printed, what it said on stderr)."""
    return ranks.finish(ranks.start([sys.executable, *RUN, *map(str, arguments)]))


def test_a_run_gives_measured_and_predicted_step_as_json_timelines_and_a_plot(ranks, tmp_path):
    code, out, err = foreshard_run(
        ranks, "host-4ranks", "--nproc", 4, "--steps", 3, "--json", *SMALL,
        "--trace", tmp_path / "traces", "--plot", tmp_path / "step.png",
    )  # fmt: skip
    assert code == 0, err
    told = json.loads(out)
    measured, predicted = told["measured"], told["predicted"]
    assert len(measured["step_times_s"]) == 3
    assert measured["step_time_s"] == sorted(measured["step_times_s"])[1]
    assert predicted["step_time_s"] > 0
    assert [row["name"] for row in measured["collectives"]] == [row["name"] for row in predicted["collectives"]]
    for mine, theirs in zip(measured["collectives"], predicted["collectives"], strict=True):
        assert mine["max_bytes_out"] == pytest.approx(theirs["max_bytes_out"], rel=0.2)  # another batch, as many ids
    assert len(measured["losses"]) == 3 + measured["warmup"]
    assert (tmp_path / "step.png").stat().st_size > 1000
    assert not ranks.left()
    check_timelines(tmp_path / "traces", predicted["step_time_s"])


def check_timelines(folder, predicted_s):
    """Each kind of file has every rank; the file of both has every operation twice, on processes of their own."""
    names = [f"rank{rank:04d}.pt.trace.json" for rank in range(4)]
    for below in ("measured", "predicted", "together"):
        assert sorted(path.name for path in (folder / below).iterdir()) == names
    one, other, both = (
        json.loads((folder / below / names[2]).read_text(encoding="utf-8"))
        for below in ("measured", "predicted", "together")
    )
    assert one["foreshard"]["source"] == "measured"
    assert other["foreshard"]["step_time_us"] == pytest.approx(predicted_s * 1e6, rel=1e-3)

    def spans(file):
        return sorted((event["name"], event["ts"], event["dur"]) for event in file["traceEvents"] if event["ph"] == "X")

    assert spans(both) == sorted(spans(one) + spans(other))
    processes = {
        event["pid"]: event["args"]["name"] for event in both["traceEvents"] if event["name"] == "process_name"
    }
    assert {"rank 2, measured", "rank 2, predicted"} <= set(processes.values())
    operations = [event for event in both["traceEvents"] if event.get("cat") == "gpu_user_annotation"]
    by_process = {pid: {it["name"] for it in operations if it["pid"] == pid} for pid in processes}
    measured, predicted = (names for names in by_process.values() if names)
    assert measured - {"wait for the last rank"} == predicted - {"wait for the last rank"}


def test_a_scenario_of_a_larger_machine_runs_on_the_ranks_there_are_and_says_so(ranks):
    code, out, err = foreshard_run(
        ranks, "mlperf-dcnv2-p5", "--nproc", 2, "--steps", 1, "--shrink-tables", 100,
        "--set", "workload.batch_size=8", "--set", "workload.dense.layers=[[13, 128], [3456, 1]]",
    )  # fmt: skip
    assert code == 0, err
    flat = " ".join(out.split())
    assert "26 of 26 tables were cut to 100 rows" in flat or "tables were cut to 100 rows" in flat
    assert "run on 2 ranks, while the scenario's machine, 8 x p5.48xlarge, has 64" in flat
    assert "no prediction is compared" in flat
    assert "Measured beside predicted" not in out
    assert not ranks.left()


def test_tables_that_do_not_fit_are_refused_before_any_rank_builds_them(ranks):
    if (available_bytes() or math.inf) > 80e9:
        pytest.skip("the tables, 114 GiB that the scenario's own machine may hold, would fit here")
    code, out, err = foreshard_run(
        ranks, "host-4ranks", "--nproc", 4, "--set", "workload.all_tables.num_embeddings=60000000"
    )
    assert code == 2
    assert not out
    assert "of this machine's memory" in err
    assert "--shrink-tables" in err
    assert not ranks.left()


def test_mistakes_are_told_once_and_no_rank_is_started(ranks):
    code, out, err = foreshard_run(ranks, "host-4ranks", "--nproc", 2, "--set", "workload.batch_size=-1")
    assert (code, out) == (2, "")
    assert err.count("expected a whole number of at least 1") == 1
    assert "[rank" not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give either --nproc N"),
        (("--nproc", "2", "--testbed", "2x2"), "--testbed needs --rate"),
        (("--nproc", "2", "--rate", "1 Gbit/s"), "give --testbed too"),
        (("--nproc", "2", "--hang-limit", "30"), "--hang-limit"),
        (("--nproc", "2", "--hang-limit", "10 ms"), "expected at least 1 s"),
        (("--nproc", "2", "--trace", "/proc/none"), "/proc"),
        (("--nproc", "2", "--plot", "/none/step.png"), "/none"),
    ],
)
def test_options_that_cannot_be_are_refused(ranks, arguments, told):
    code, out, err = foreshard_run(ranks, "host-4ranks", *arguments)
    assert (code, out) == (2, "")
    assert told in err


def test_all_mistakes_are_told_at_once(ranks):
    """Of how the ranks start, of limits, of the scenario and of what is to be written."""
    arguments = ("--rate", "1 Gbit/s", "--hang-limit", "30", "--set", "workload.batch_size=-1", "--plot", "/none/a.png")
    code, out, err = foreshard_run(ranks, "host-4ranks", "--nproc", 2, *arguments)
    assert (code, out) == (2, "")
    assert "4 mistakes" in err
    for part in ("give --testbed too", "'30' has no unit", "at least 1", "/none"):
        assert part in err


def test_an_interrupt_at_the_launcher_ends_all_ranks(ranks):
    process = ranks.start([sys.executable, *RUN, "host-4ranks", "--nproc", "2", "--steps", "100000", *SMALL])
    until = time.monotonic() + 120
    while len(ranks.alive()) < 3 and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(2.0)
    process.send_signal(signal.SIGINT)
    code, out, _ = ranks.finish(process)
    assert code == 130
    assert not out
    assert not ranks.left()


def test_ranks_started_by_torchrun_print_the_same_report(ranks):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    module = ["-m", "foreshard.calibration.run", "host-4ranks", "--steps", "2", "--json", *SMALL]
    code, out, err = ranks.finish(ranks.start([*launch, *module]))
    assert code == 0, err
    told = json.loads(out)
    assert told["measured"]["scenario"]["name"] == "host-4ranks"
    assert told["predicted"] is None  # the scenario's machine has four ranks
    assert not ranks.left()


def test_nodes_started_apart_make_one_run(ranks):
    """As on two machines: no launcher in common, rank 0 holds the store."""
    module = ["-m", "foreshard.calibration.run", "host-4ranks", "--steps", "2", *SMALL]
    processes = ranks.apart([sys.executable, *module], nodes=2, local_ranks=1)
    results = [ranks.finish(process) for process in processes]
    assert [code for code, _, _ in results] == [0, 0], results[0][2]
    assert "run on 2 ranks on 2 nodes" in " ".join(results[0][1].split())
    assert not results[1][1]
    assert not ranks.left()


def test_a_rank_with_another_seed_stops_all(ranks):
    module = ["-m", "foreshard.calibration.run", "host-4ranks", *SMALL]
    processes = ranks.apart([sys.executable, *module], nodes=2, local_ranks=1, last=("--set", "execution.seed=9"))
    for process in processes:
        code, out, err = ranks.finish(process)
        assert (code, out) == (2, "")
        assert "rank 1 differs from rank 0: execution.seed is 9 on rank 1, 0 on rank 0" in err
    assert not ranks.left()

"""Measured steps are defined as simulated ones are: times that the engine made up give the simulator's trace again."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from foreshard.calibration.launch.measured import WorldTimes, measured_run, with_bounds
from foreshard.calibration.launch.run_report import RunReport
from foreshard.calibration.runner.interpreter import run_program
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.results.exposure import breakdown
from foreshard.simulator.results.report import report
from foreshard.simulator.step.engine import Engine
from foreshard.simulator.step.inline import inlined
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError

WARMUP, STEPS = 4, 3


def timeline_of(prediction, program, backend):
    """The engine's times of all steps, as if they had been recorded."""
    ran = inlined(program) if backend == "gloo" else program
    timeline = Engine(ran, prediction.cluster, WARMUP + STEPS).run()
    nothing = np.full(timeline.end.shape, np.nan)
    return WorldTimes(
        start_s=timeline.start + 77.0,  # a clock begins anywhere
        end_s=timeline.end + 77.0,
        host_s=np.ones(timeline.end.shape),
        sent_bytes=nothing,
        received_bytes=nothing,
    )


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
@pytest.mark.parametrize(("machine", "backend"), [("cpu-host", "gloo"), ("p5.48xlarge", "nccl")], ids=["cpu", "gpu"])
def test_times_of_the_engine_give_the_trace_of_the_simulator(machine, backend, pipeline):
    changes = [f"cluster.preset={machine}", f"execution.pipeline={pipeline}"]
    prediction = Prediction(read_scenario("host-4ranks", changes))
    program = run_program(prediction)
    times = timeline_of(prediction, program, backend)
    run = measured_run(program, times, warmup=WARMUP, backend=backend)
    predicted, measured = prediction.trace, run.step.trace
    assert [(op.name, op.stream, op.stage) for op in measured.ops] == [
        (op.name, op.stream, op.stage) for op in predicted.ops
    ]
    assert measured.step_time_s == pytest.approx(predicted.step_time_s, rel=1e-6)
    for field in ("start_s", "end_s", "wait_s"):
        assert getattr(measured, field) == pytest.approx(getattr(predicted, field), abs=1e-7), field
    for mine, theirs in zip(measured.ops, predicted.ops, strict=True):
        if theirs.collective is not None:
            assert mine.collective.time_s == pytest.approx(theirs.collective.time_s, abs=1e-7)
            assert mine.collective.max_bytes_out == pytest.approx(theirs.collective.max_bytes_out)
            assert mine.collective.group_sizes == theirs.collective.group_sizes


def made_up():
    """A step program and times of five steps of which each takes 1 s more than the one before."""
    prediction = Prediction(read_scenario("host-4ranks", ["cluster.preset=cpu-host"]))
    program = run_program(prediction)
    shape = (5, len(program.ops), prediction.cluster.size)
    ends = np.cumsum(np.arange(1.0, 6.0))
    end = np.broadcast_to(ends[:, None, None], shape).copy()
    nothing = np.full(shape, np.nan)
    times = WorldTimes(start_s=end - 0.5, end_s=end, host_s=nothing, sent_bytes=nothing, received_bytes=nothing)
    return program, times


def test_the_step_time_is_the_median_from_mark_to_mark_and_every_step_is_kept():
    program, times = made_up()
    run = measured_run(program, times, warmup=2, backend="gloo")
    assert run.step_times_s.tolist() == [3.0, 4.0, 5.0]
    assert run.step_time_s == 4.0
    assert run.step.numbers == (2, 3, 4)
    assert run.step.interval_s == pytest.approx((3.2, 4.8))


def test_a_rank_without_a_part_in_an_operation_is_nan_there_and_counts_for_nothing_in_a_report():
    prediction = Prediction(read_scenario("host-4ranks"))
    program = run_program(prediction)
    times = timeline_of(prediction, program, "gloo")
    index = next(i for i, op in enumerate(program.ops) if op.name == "dense_all_reduce")
    start, end = times.start_s.copy(), times.end_s.copy()
    start[:, index, 1], end[:, index, 1] = np.nan, np.nan
    run = measured_run(program, replace(times, start_s=start, end_s=end), warmup=WARMUP, backend="gloo")
    assert np.isnan(run.step.trace.end_s[index]).tolist() == [False, True, False, False]
    told = report(run.step.trace).to_dict()
    assert all(np.isfinite(row["wait_s"]) and np.isfinite(row["time_s"]) for row in told["collectives"])
    parts = [stage["compute_s"] + stage["exposed_s"] for stage in told["stages"].values()]
    assert sum(parts) + told["idle_s"] == pytest.approx(run.step.trace.step_time_s)


def test_bytes_that_the_runner_counted_take_the_place_of_the_programs():
    program, times = made_up()
    index = next(i for i, op in enumerate(program.ops) if op.name.startswith("input_dist.values"))
    sent = times.sent_bytes.copy()
    sent[:, index] = [10.0, 30.0, 20.0, 0.0]
    run = measured_run(program, replace(times, sent_bytes=sent), warmup=1, backend="gloo")
    assert run.step.trace.ops[index].collective.max_bytes_out == 30.0


def test_steps_in_which_replicas_average_are_told_apart():
    changes = ["cluster.preset=cpu-host", "layout.sharding_group_size=2", "layout.sync_interval=2"]
    prediction = Prediction(read_scenario("host-4ranks", changes))
    program = run_program(prediction)
    times = timeline_of(prediction, program, "gloo")
    own = [index for index, op in enumerate(program.ops) if op.label == "replica_sync"]
    start, end = times.start_s.copy(), times.end_s.copy()
    start[::2, own], end[::2, own] = np.nan, np.nan
    run = measured_run(
        program, replace(times, start_s=start, end_s=end), warmup=WARMUP, backend="gloo", sync_interval=2
    )
    assert own
    assert run.step.numbers == (4, 6)
    assert run.sync_step.numbers == (5,)
    assert len(run.sync_step.trace.ops) == len(run.step.trace.ops) + len(own)


def in_turns(*step_times_s, interval):
    """A run whose steps took so long, of which every `interval`-th averages replicas, and its prediction."""
    changes = ["cluster.preset=cpu-host", "layout.sharding_group_size=2", f"layout.sync_interval={interval}"]
    prediction = Prediction(read_scenario("host-4ranks", changes))
    program = run_program(prediction)
    shape = (1 + len(step_times_s), len(program.ops), prediction.cluster.size)
    end = np.broadcast_to(np.cumsum([1.0, *step_times_s])[:, None, None], shape).copy()
    own = [index for index, op in enumerate(program.ops) if op.label == "replica_sync"]
    plain = [step for step in range(shape[0]) if step % interval]
    end[np.ix_(plain, own)] = np.nan
    nothing = np.full(shape, np.nan)
    times = WorldTimes(start_s=end - 0.5, end_s=end, host_s=nothing, sent_bytes=nothing, received_bytes=nothing)
    return measured_run(program, times, warmup=1, backend="gloo", sync_interval=interval), prediction, program


def test_the_step_time_of_steps_that_take_turns_is_the_median_of_whole_turns():
    """Turns of two take 2, 3 and 4 s a step; the seventh step begins one that does not end."""
    run, _, _ = in_turns(1.0, 3.0, 1.0, 5.0, 1.0, 7.0, 1.0, interval=2)
    assert run.step_time_s == 3.0
    assert (run.step.trace.step_time_s, run.sync_step.trace.step_time_s) == (1.0, 5.0)


def test_stages_and_interval_of_a_report_are_those_of_both_kinds_of_steps():
    """Two plain steps and one that averages, in that proportion; the interval lies around the mean."""
    run, prediction, program = in_turns(1.0, 1.0, 4.0, 1.0, 1.0, 4.0, interval=3)
    told = RunReport(prediction=prediction, program=program, run=run, backend="gloo", losses=(1.0,))
    measured = told.measured()
    assert measured.step_time_s == pytest.approx(2.0)
    assert measured.step_time_interval_s == pytest.approx((2.0, 2.0))
    plain, averaging = (breakdown(step.trace, measured.breakdown.rank) for step in (run.step, run.sync_step))
    assert averaging.idle_s > plain.idle_s > 0
    assert measured.breakdown.idle_s == pytest.approx((2 * plain.idle_s + averaging.idle_s) / 3)
    assert json.loads(json.dumps(told.to_dict(), allow_nan=False))["measured"]["sync_step_time_s"] == 4.0


def test_bounds_come_from_the_prediction():
    prediction = Prediction(read_scenario("host-4ranks", ["cluster.preset=cpu-host"]))
    program, times = made_up()
    measured = measured_run(program, times, warmup=1, backend="gloo").step.trace
    told = with_bounds(measured, prediction.trace)
    assert {op.collective.bound_s for op in measured.ops if op.collective} == {0.0}
    known = [op.collective.bound_s for op in prediction.trace.ops if op.collective]
    assert [op.collective.bound_s for op in told.ops if op.collective] == known


def test_a_collective_without_a_known_bound_has_no_ratio():
    """Neither in the table nor in JSON, unless nothing moved."""
    program, times = made_up()
    told = report(measured_run(program, times, warmup=1, backend="gloo").step.trace)
    assert all(row.ratio is None for row in told.collectives if row.max_bytes_out)
    assert any(row.max_bytes_out for row in told.collectives)
    line = next(line for line in told.to_text().splitlines() if line.startswith("dense_all_reduce"))
    assert line.split()[-3:] == ["500.000", "0.000", "gloo"]  # ms, exposed and algorithm, nothing between


@pytest.mark.parametrize("warmup", [0, 5, 6])
def test_a_run_without_a_mark_before_it_or_a_step_after_it_is_refused(warmup):
    program, times = made_up()
    with pytest.raises(InputError, match="warm-up of at least 1"):
        measured_run(program, times, warmup=warmup, backend="gloo")

"""From the records of all ranks to measured step traces: on one clock, from mark to mark, medians over steps.

A step lasts from one mark to the next, as in `simulate_program`: the end of the last operation on the compute stream,
on the slowest rank, of two successive steps. Times of a step count from the mark of the step before it, so that an
operation that ran ahead in the pipeline may have negative times. The first step has no mark before it. Ranks on CPUs
compute on their host thread, and their operations are told as `inlined` tells them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.program import Collective, Op, StepProgram
from foreshard.simulator.job.trace import CollectiveInfo, OpInfo, StepTrace
from foreshard.simulator.step.inline import inlined
from foreshard.simulator.step.prediction import busiest
from foreshard.topologies.errors import InputError

__all__ = ["HIGH", "LOW", "MeasuredRun", "MeasuredStep", "WorldTimes", "measured_run", "with_bounds"]

FloatArray = NDArray[np.float64]

LOW, HIGH = 10, 90  # percentiles of the spread over steps


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WorldTimes:
    """`RankTimes` of all ranks on rank 0's clock, [steps, ops, ranks] each; `clock_s` is its uncertainty in seconds."""

    start_s: FloatArray
    end_s: FloatArray
    host_s: FloatArray
    sent_bytes: FloatArray
    received_bytes: FloatArray
    clock_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MeasuredStep:
    """Steps of one kind: medians as a StepTrace, and their spread, as 10th and 90th percentile over steps.

    `numbers` [steps] are the steps, `step_times_s` [steps] how long each took. `spread_s` [2, ops, ranks] is that of
    every operation's duration, `transfer_spread_s` [2, ops] that of every collective's `time_s`, NaN of compute.
    """

    trace: StepTrace
    numbers: tuple[int, ...]
    step_times_s: FloatArray
    spread_s: FloatArray
    transfer_spread_s: FloatArray

    @property
    def interval_s(self) -> tuple[float, float]:
        """10th and 90th percentile of the step time over steps, in seconds."""
        low, high = np.percentile(self.step_times_s, [LOW, HIGH])
        return float(low), float(high)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MeasuredRun:
    """A run: the step that a reader wants to see, and where replicas average now and then, the step in which they do.

    `warmup` steps came first and were dropped; `step_times_s` [steps] are those of all after them, in order.
    """

    step: MeasuredStep
    sync_step: MeasuredStep | None
    sync_interval: int
    warmup: int
    step_times_s: FloatArray
    clock_s: float

    @property
    def step_time_s(self) -> float:
        """Median step time in seconds; where steps take turns, the median over whole turns of their mean.

        What averaging replicas costs may fall on the step after it, which waits for the averages.
        """
        if self.sync_step is None:
            return self.step.trace.step_time_s
        took = dict(zip(self.step.numbers, self.step.step_times_s.tolist(), strict=True))
        took |= zip(self.sync_step.numbers, self.sync_step.step_times_s.tolist(), strict=True)
        ordered = [took[number] for number in sorted(took)]
        turns = len(ordered) // self.sync_interval
        if not turns:
            return float(np.mean(ordered))
        whole = np.array(ordered[: turns * self.sync_interval]).reshape(turns, self.sync_interval)
        return float(np.median(whole.mean(axis=1)))


def measured_run(
    program: StepProgram, times: WorldTimes, *, warmup: int, backend: str, sync_interval: int = 1
) -> MeasuredRun:
    """Return the measured steps after `warmup` ones, at least one, which has to give the first mark.

    `sync_interval` is the layout's: if it is not 1, steps in which replicas averaged are told apart from the others.
    Raises InputError if no step is left.
    """
    steps = len(times.start_s)
    if not 1 <= warmup < steps:
        raise InputError(f"{steps} steps with a warm-up of {warmup}: a warm-up of at least 1 and a step after it")
    if backend == "gloo":
        program = inlined(program)
    marks = _marks(program, times)
    averaged = _averaged(program, times) & (sync_interval > 1)
    chosen = [np.flatnonzero(averaged[warmup:] == kind) + warmup for kind in (False, True)]
    found = [_measured_step(program, times, marks, numbers, backend) for numbers in chosen if len(numbers)]
    return MeasuredRun(
        step=found[0],
        sync_step=found[1] if len(found) > 1 else None,
        sync_interval=sync_interval,
        warmup=warmup,
        step_times_s=np.diff(marks)[warmup - 1 :],
        clock_s=times.clock_s,
    )


def _marks(program: StepProgram, times: WorldTimes) -> FloatArray:
    """When each step ended, [steps]: the end of the compute stream on the slowest rank."""
    computes = [index for index, op in enumerate(program.ops) if op.stream == "compute"]
    return np.asarray(np.fmax.reduce(times.end_s[:, computes], axis=(1, 2)))


def _averaged(program: StepProgram, times: WorldTimes) -> NDArray[np.bool_]:
    """Whether replicas were synchronised in each step, [steps]."""
    own = [index for index, op in enumerate(program.ops) if op.label == "replica_sync"]
    return np.asarray(~np.isnan(times.end_s[:, own]).all(axis=(1, 2)))


def _measured_step(
    program: StepProgram, times: WorldTimes, marks: FloatArray, numbers: NDArray[np.int64], backend: str
) -> MeasuredStep:
    origin = marks[numbers - 1][:, None, None]
    took = marks[numbers] - marks[numbers - 1]
    here = np.flatnonzero(~np.isnan(times.end_s[numbers]).all(axis=(0, 2)))  # operations that ran at all
    ops = [program.ops[index] for index in here.tolist()]

    def part(values: FloatArray) -> FloatArray:
        return values[np.ix_(numbers, here)]

    start, end = part(times.start_s) - origin, part(times.end_s) - origin
    begun = _begun(ops, start)
    wait = np.minimum(np.maximum(begun - start, 0.0), end - start)
    transfer = np.maximum(np.fmax.reduce(end - begun, axis=2), 0.0)  # [steps, ops], of compute the slowest rank's
    out, into = (_medians(np.fmax.reduce(part(it), axis=2)) for it in (times.sent_bytes, times.received_bytes))
    middle_start, middle_end = _medians(start), _medians(end)
    trace = StepTrace(
        source="measured",
        ops=tuple(
            _described(op, float(sent), float(received), float(seconds), backend)
            for op, sent, received, seconds in zip(ops, out, into, _medians(transfer), strict=True)
        ),
        start_s=middle_start,
        end_s=middle_end,
        wait_s=np.minimum(_medians(wait), middle_end - middle_start),
        launch_s=np.zeros_like(middle_start),
        host_s=_host_s(part(times.host_s), backend),
        step_time_s=float(np.median(took)),
    )
    compute = [not isinstance(op.work, Collective) for op in ops]
    spread = _spreads(transfer)
    spread[:, compute] = np.nan
    return MeasuredStep(
        trace=trace,
        numbers=tuple(numbers.tolist()),
        step_times_s=took,
        spread_s=_spreads(end - start),
        transfer_spread_s=spread,
    )


def _medians(values: FloatArray) -> FloatArray:
    """Medians over steps, the first axis; steps without a value are left out, NaN where none has one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=0))


def _spreads(values: FloatArray) -> FloatArray:
    """The 10th and 90th percentile over steps, [2, ...], likewise."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
        return np.asarray(np.nanpercentile(values, [LOW, HIGH], axis=0))


def _begun(ops: Sequence[Op], start: FloatArray) -> FloatArray:
    """When the last member had joined, [steps, ops, ranks]; of compute, its start; NaN where a rank has no part."""
    begun = start.copy()
    for index, op in enumerate(ops):
        if isinstance(op.work, Collective):
            for members in op.work.groups.members:
                last = np.fmax.reduce(start[:, index, members], axis=1, keepdims=True)
                begun[:, index, members] = np.where(np.isnan(start[:, index, members]), np.nan, last)
    return begun


def _host_s(host_s: FloatArray, backend: str) -> float:
    """The host's time to issue a step, of the slowest rank; a CPU rank's host computes instead of issuing: 0."""
    return float(np.median(np.nansum(host_s, axis=1).max(axis=1))) if backend == "nccl" else 0.0


def _described(op: Op, sent: float, received: float, seconds: float, backend: str) -> OpInfo:
    info = _collective(op.work, sent, received, seconds, backend) if isinstance(op.work, Collective) else None
    return OpInfo(name=op.name, label=op.label, stage=op.stage, stream=op.stream, batch=op.batch, collective=info)


def _collective(work: Collective, sent: float, received: float, seconds: float, backend: str) -> CollectiveInfo:
    """A collective; its bytes are the program's where the runner said nothing of them (NaN)."""
    planned = busiest(work)
    joined = work.groups.sizes[work.groups.sizes > 1] if work.groups.sizes.max() > 1 else work.groups.sizes
    return CollectiveInfo(
        kind=work.kind,
        algorithm=backend,
        group_size=int(joined.max()),
        groups=len(joined),
        max_bytes_out=planned[0] if np.isnan(sent) else sent,
        max_bytes_in=planned[1] if np.isnan(received) else received,
        time_s=seconds,
        bound_s=0.0,
        bottleneck="",
        group_sizes=tuple(np.unique(joined).tolist()),
    )


def with_bounds(measured: StepTrace, predicted: StepTrace) -> StepTrace:
    """The measured trace with the closed-form bounds of the prediction for the same operations."""
    known = {op.name: op.collective for op in predicted.ops if op.collective is not None}
    ops = tuple(
        replace(op, collective=replace(op.collective, bound_s=of.bound_s, bottleneck=of.bottleneck))
        if op.collective is not None and (of := known.get(op.name)) is not None
        else op
        for op in measured.ops
    )
    return replace(measured, ops=ops)

"""From the records of all ranks to measured step traces: on one clock, from mark to mark, medians over steps.

A step lasts from one mark to the next, as in `simulate_program`: the end of the last operation on the compute stream,
on the slowest rank, of two successive steps. Times of a step count from the mark of the step before it, so that an
operation that ran ahead in the pipeline may have negative times. The first step has no mark before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.program import Collective, Op, StepProgram
from foreshard.simulator.job.trace import CollectiveInfo, OpInfo, StepTrace
from foreshard.simulator.step.prediction import busiest
from foreshard.topologies.errors import InputError

__all__ = ["HIGH", "LOW", "MeasuredRun", "MeasuredStep", "WorldTimes", "measured_run", "with_bounds"]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

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
    """Steps that ran the same operations: medians as a StepTrace, and their spread.

    `numbers` [steps] are the steps, `step_times_s` [steps] how long each took. `spread_s` [2, ops, ranks] are the 10th
    and 90th percentile of every operation's duration.
    """

    trace: StepTrace
    numbers: tuple[int, ...]
    step_times_s: FloatArray
    spread_s: FloatArray

    @property
    def interval_s(self) -> tuple[float, float]:
        """10th and 90th percentile of the step time over steps, in seconds."""
        low, high = np.percentile(self.step_times_s, [LOW, HIGH])
        return float(low), float(high)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MeasuredRun:
    """A run: the step that a reader wants to see, and where replicas average now and then, the step in which they do.

    `warmup` steps came first and were dropped.
    """

    step: MeasuredStep
    sync_step: MeasuredStep | None
    sync_interval: int
    warmup: int
    clock_s: float

    @property
    def step_time_s(self) -> float:
        """Median step time in seconds; where two kinds of steps take turns, their medians in their proportion."""
        plain = self.step.trace.step_time_s
        if self.sync_step is None:
            return plain
        return plain + (self.sync_step.trace.step_time_s - plain) / self.sync_interval


def measured_run(
    program: StepProgram, times: WorldTimes, *, warmup: int, backend: str, sync_interval: int = 1
) -> MeasuredRun:
    """Return the measured steps after `warmup` ones, at least one, which has to give the first mark.

    `sync_interval` is the layout's; steps are told apart by the operations that ran in them. Raises InputError if no
    step is left.
    """
    steps = len(times.start_s)
    if not 1 <= warmup < steps:
        raise InputError(f"{steps} steps with a warm-up of {warmup}: a warm-up of at least 1 and a step after it")
    marks = _marks(program, times)
    ran = ~np.isnan(times.end_s).all(axis=2)  # [steps, ops]
    kinds: dict[bytes, list[int]] = {}
    for step in range(warmup, steps):
        kinds.setdefault(ran[step].tobytes(), []).append(step)
    found = [_measured_step(program, times, marks, chosen, backend) for chosen in kinds.values()]
    found.sort(key=lambda step: len(step.trace.ops))
    if len(found) > 2 or (len(found) == 2 and sync_interval == 1):
        raise InputError(f"steps ran {len(found)} different sets of operations: the runner leaves some out at random")
    return MeasuredRun(
        step=found[0],
        sync_step=found[1] if len(found) == 2 else None,
        sync_interval=sync_interval,
        warmup=warmup,
        clock_s=times.clock_s,
    )


def _marks(program: StepProgram, times: WorldTimes) -> FloatArray:
    """When each step ended, [steps]: the last operation on the compute stream, on the slowest rank."""
    last = max(index for index, op in enumerate(program.ops) if op.stream == "compute")
    return np.asarray(np.nanmax(times.end_s[:, last], axis=1))


def _measured_step(
    program: StepProgram, times: WorldTimes, marks: FloatArray, steps: Sequence[int], backend: str
) -> MeasuredStep:
    chosen = np.array(steps)
    origin = marks[chosen - 1][:, None, None]
    took = marks[chosen] - marks[chosen - 1]
    here = np.flatnonzero(~np.isnan(times.end_s[chosen[0]]).all(axis=1))
    ops = [program.ops[index] for index in here.tolist()]
    start, end = (values[np.ix_(chosen, here)] - origin for values in (times.start_s, times.end_s))
    begun = _begun(ops, start)
    wait = np.minimum(np.maximum(begun - start, 0.0), end - start)
    moved = [values[np.ix_(chosen, here)] for values in (times.sent_bytes, times.received_bytes)]
    host = np.nansum(times.host_s[chosen], axis=1)  # [steps, ranks]
    middle_start, middle_end = np.median(start, axis=0), np.median(end, axis=0)
    trace = StepTrace(
        source="measured",
        ops=tuple(_described(op, i, begun, end, moved, backend) for i, op in enumerate(ops)),
        start_s=middle_start,
        end_s=middle_end,
        wait_s=np.minimum(np.median(wait, axis=0), middle_end - middle_start),
        launch_s=np.zeros_like(middle_start),
        # The host of a CPU rank computes the operations itself: it does not issue them.
        host_s=float(np.median(host.max(axis=1))) if backend == "nccl" else 0.0,
        step_time_s=float(np.median(took)),
    )
    spread = np.percentile(end - start, [LOW, HIGH], axis=0)
    return MeasuredStep(trace=trace, numbers=tuple(steps), step_times_s=took, spread_s=spread)


def _begun(ops: Sequence[Op], start: FloatArray) -> FloatArray:
    """When the last member had joined, [steps, ops, ranks]; of compute, its start."""
    begun = start.copy()
    for index, op in enumerate(ops):
        if not isinstance(op.work, Collective):
            continue
        for members in op.work.groups.members:
            there = members[~np.isnan(start[0, index, members])]
            if len(there):
                begun[:, index, there] = start[:, index, there].max(axis=1, keepdims=True)
    return begun


def _described(
    op: Op, index: int, begun: FloatArray, end: FloatArray, moved: Sequence[FloatArray], backend: str
) -> OpInfo:
    info = None
    if isinstance(op.work, Collective):
        info = _collective(op.work, end[:, index] - begun[:, index], [values[:, index] for values in moved], backend)
    return OpInfo(name=op.name, label=op.label, stage=op.stage, stream=op.stream, batch=op.batch, collective=info)


def _collective(work: Collective, took: FloatArray, moved: Sequence[FloatArray], backend: str) -> CollectiveInfo:
    """A collective, `took` [steps, ranks] from the last member's joining to the end; sizes by the runner or program."""
    out, into = (_moved(values, planned) for values, planned in zip(moved, busiest(work), strict=True))
    joined = work.groups.sizes[work.groups.sizes > 1] if work.groups.sizes.max() > 1 else work.groups.sizes
    return CollectiveInfo(
        kind=work.kind,
        algorithm=backend,
        group_size=int(joined.max()),
        groups=len(joined),
        max_bytes_out=out,
        max_bytes_in=into,
        time_s=max(0.0, float(np.median(np.nanmax(took, axis=1)))),
        bound_s=0.0,
        bottleneck="",
        group_sizes=tuple(np.unique(joined).tolist()),
    )


def _moved(told: FloatArray, planned: float) -> float:
    """Median bytes of the busiest rank, `told` [steps, ranks] by the runner; the program's where it said nothing."""
    if np.isnan(told).all(axis=1).any():
        return planned
    return float(np.median(np.nanmax(told, axis=1)))


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

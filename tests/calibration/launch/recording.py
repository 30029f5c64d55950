"""Two ranks that record collectives of every kind and compare their clocks; rank 0 prints what it found as JSON.

Rank 1 joins each collective late. Rank 0 waits for it only half a second after rank 1 has told that its part is done.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from foreshard.calibration.launch.clocks import CommonClock, measure_offset
from foreshard.calibration.launch.gathering import common_offset, gather_times
from foreshard.calibration.launch.recorder import Recorder
from foreshard.calibration.launch.session import Limits, Session
from foreshard.calibration.launch.timers import HostTimer
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective, Compute, Op, StepProgram

KINDS = ("all_to_all", "all_reduce", "reduce_scatter", "all_gather", "broadcast")
LATE_S, LATER_S, SHIFT_S = 0.2, 0.5, 5.0


def program():
    """Every kind of collective, then a computation."""
    work = [Collective(kind=kind, groups=Groups.world(2), nbytes=(8000.0,)) for kind in KINDS]
    ops = [Op(name=one.kind, label=one.kind, stage="vector_return", stream="comm", work=one) for one in work]
    compute = Compute(seconds=np.zeros(2))
    last = Op(name="forward", label="forward", stage="local_compute", stream="compute", work=compute)
    return StepProgram(world_size=2, ops=(*ops, last), warmup_steps=1)


def issues(group):
    """What starts a collective of each kind."""
    whole, part, other = torch.ones(2000), torch.ones(1000), torch.empty(2000)
    return {
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group, async_op=True),
        "all_reduce": lambda: dist.all_reduce(whole, group=group, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group, async_op=True),
        "all_gather": lambda: dist.all_gather_into_tensor(other, part, group=group, async_op=True),
        "broadcast": lambda: dist.broadcast(part, 0, group=group, async_op=True),
    }


def record(session, world):
    """Record a step; when rank 0 began to wait for each collective."""
    recorder = Recorder(program(), world.rank, HostTimer(), session.progress)
    group, waited = world.group(Groups.world(2), "comm"), []
    begin = common_offset(world)
    recorder.step(0)
    for index, (kind, issue) in enumerate(issues(group).items()):
        dist.barrier(group=world.control)
        if world.rank:
            time.sleep(LATE_S)
        pending = recorder.collective(index, issue, sent_bytes=index, received_bytes=2 * index)
        if world.rank:
            pending.wait()
            session.store.set(f"ended {kind}", "1")
        else:
            session.store.wait([f"ended {kind}"], timedelta(seconds=30))
            time.sleep(LATER_S)
            waited.append(time.perf_counter())
            pending.wait()
    with recorder.compute(len(KINDS)):
        pass
    recorder.step(1)
    return gather_times(world, recorder.times(), CommonClock(begin, common_offset(world))), waited


def main():
    torch.set_num_threads(1)
    with Session.join(Limits()) as session:
        world = session.world()
        shifted = measure_offset(world.control, world.rank, 2, clock=lambda: time.perf_counter() + SHIFT_S * world.rank)
        true = measure_offset(world.control, world.rank, 2)
        clocks = [None, None]
        dist.all_gather_object(clocks, (shifted, true, common_offset(world)), group=world.control)
        times, waited = record(session, world)
        if times is not None:
            told = {name: getattr(times, name)[0].tolist() for name in ("start_s", "end_s", "sent_bytes", "host_s")}
            offsets = [[[one.offset_s, one.uncertainty_s] for one in rank] for rank in clocks]
            print(json.dumps({**told, "waited": waited, "clocks": offsets}))


if __name__ == "__main__":
    main()

"""One rank of a small run for the tests: a program of four operations, and one misdeed at most.

Its argument is JSON: limits, steps, each rank's terms, and what one rank does wrong in which operation of which step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from foreshard.calibration.launch.clocks import CommonClock
from foreshard.calibration.launch.gathering import common_offset, gather_times
from foreshard.calibration.launch.recorder import Recorder
from foreshard.calibration.launch.session import Limits, Session
from foreshard.calibration.launch.timers import HostTimer
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective, Compute, Op, StepProgram
from foreshard.topologies.errors import InputError

ELEMENTS = 1000


def program_of(world_size):
    """Look up, reduce-scatter, compute, all-reduce: the two kinds of collectives, with a future and without."""
    world, none = Groups.world(world_size), np.zeros(world_size)
    size = (4.0 * ELEMENTS * world_size,)
    scatter = Collective(kind="reduce_scatter", groups=world, nbytes=size)
    reduce = Collective(kind="all_reduce", groups=world, nbytes=size)
    ops = (
        Op(name="lookup", label="lookup", stage="vector_return", stream="compute", work=Compute(seconds=none)),
        Op(name="output_dist", label="output_dist", stage="vector_return", stream="comm", work=scatter),
        Op(name="forward", label="forward", stage="local_compute", stream="compute", work=Compute(seconds=none)),
        Op(name="dense_all_reduce", label="x", stage="dense_gradient_sync", stream="comm", work=reduce),
        Op(name="dense_optimizer", label="y", stage="optimizer_update", stream="compute", work=Compute(seconds=none)),
    )
    return StepProgram(world_size=world_size, ops=ops, warmup_steps=1)


def misbehave(how):
    """What can go wrong on a rank."""
    match how:
        case "raise":
            raise ValueError("a table of no rows")
        case "refuse":
            raise InputError("a table has no rows: give it some")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(0)
        case "hang":
            while True:
                time.sleep(1)


def train(session, order):
    """The steps; the times of all ranks on rank 0."""
    world = session.world()
    program = program_of(world.world_size)
    group = world.group(Groups.world(world.world_size), "comm")
    recorder = Recorder(program, world.rank, HostTimer(), session.progress)
    given, kept = torch.ones(world.world_size * ELEMENTS), torch.empty(ELEMENTS)
    before = common_offset(world)

    def check(step, name):
        misdeed = order.get("misdeed", {})
        if (misdeed.get("rank"), misdeed.get("step"), misdeed.get("op")) == (world.rank, step, name):
            misbehave(misdeed["how"])

    for step in range(order.get("steps", 4)):
        recorder.step(step)
        if world.rank == 0 and step == order.get("tell_at", -1):
            Path(order["told"]).write_text("here", encoding="ascii")
        with recorder.compute(0):
            check(step, "lookup")
            time.sleep(order.get("lookup_s", 0.0))
        scattered = recorder.collective(
            1, lambda: dist.reduce_scatter_tensor(kept, given, group=group, async_op=True), sent_bytes=step
        )
        scattered.wait()
        with recorder.compute(2):
            check(step, "forward")
        reduced = recorder.collective(3, lambda: dist.all_reduce(given, group=group, async_op=True))
        check(step, "dense_all_reduce")
        reduced.wait()
        with recorder.compute(4):
            given.fill_(1.0)
    recorder.step(order.get("steps", 4))
    return gather_times(world, recorder.times(), CommonClock(before, common_offset(world)))


def main():
    order = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    limits = Limits(hang_s=order.get("hang_s", 30.0), join_s=order.get("join_s", 60.0))
    with Session.join(limits) as session:
        rank = session.place.rank
        session.progress.phase("reading the scenario")
        if order.get("misdeed", {}).get("op") == "setup" and order["misdeed"]["rank"] == rank:
            misbehave(order["misdeed"]["how"])
        session.agree(order.get("terms", {}).get(str(rank), {"steps": 4}))
        times = train(session, order)
        if times is not None:
            print(json.dumps({"steps": len(times.end_s), "clock_s": times.clock_s}))


if __name__ == "__main__":
    main()

"""A hand-made step on 8 ranks: durations are round numbers, so that sums can be checked by hand."""

from dataclasses import dataclass

import numpy as np
import pytest

from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective, Compute, Dep, Op, StepProgram
from foreshard.simulator.job.trace import CollectiveInfo, OpInfo, StepTrace
from foreshard.simulator.job.traffic import PairBytes

MS = 1e-3


@dataclass(frozen=True)
class MadeStep:
    """A program and a trace of it that no engine has seen."""

    program: StepProgram
    trace: StepTrace


def _program(ranks: int, groups: Groups) -> StepProgram:
    slow = np.ones(ranks)
    slow[ranks - 3] = 2.0  # one rank owns twice the rows
    size = len(groups.members[0])
    ids = PairBytes.dense(np.arange(size * size, dtype=float).reshape(size, size) * 1e5)
    vectors = PairBytes.uniform(size, 64e6)

    def compute(name, stage, stream, seconds, *deps):
        deps = tuple(Dep(dep) for dep in deps)
        return Op(
            name=name, label=name.split(".")[0], stage=stage, stream=stream, work=Compute(seconds=seconds), deps=deps
        )

    def exchange(name, stage, stream, work, *deps):
        deps = tuple(Dep(dep) for dep in deps)
        return Op(name=name, label=name.split(".")[0], stage=stage, stream=stream, work=work, deps=deps)

    def all_to_all(traffic):
        return Collective(kind="all_to_all", groups=groups, traffic=(traffic,))

    world = Collective(kind="all_reduce", groups=Groups.world(ranks), nbytes=(32e6,))
    ops = (
        exchange("input_dist.values.row_wise", "lookup_routing", "comm", all_to_all(ids)),
        compute("lookup.row_wise", "vector_return", "compute", slow * 1.5 * MS, "input_dist.values.row_wise"),
        exchange("output_dist.row_wise", "vector_return", "comm", all_to_all(vectors), "lookup.row_wise"),
        compute("forward", "local_compute", "compute", np.full(ranks, 2.5 * MS), "output_dist.row_wise"),
        compute("copy_batch_to_device", "batch_input", "copy", np.full(ranks, 1.0 * MS)),
        compute("backward", "local_compute", "compute", np.full(ranks, 5.0 * MS), "forward"),
        exchange(
            "output_dist_backward.row_wise", "sparse_gradient_return", "comm", all_to_all(vectors.transposed()),
            "backward",
        ),
        exchange("dense_all_reduce", "dense_gradient_sync", "dense_comm", world, "backward"),
        compute(
            "embedding_backward.row_wise", "sparse_gradient_return", "compute", slow * 2.0 * MS,
            "output_dist_backward.row_wise",
        ),
        compute("dense_optimizer", "optimizer_update", "compute", np.full(ranks, 0.5 * MS), "dense_all_reduce"),
    )  # fmt: skip
    return StepProgram(world_size=ranks, ops=ops, warmup_steps=0)


def _seconds(work: Collective) -> float:
    return 3.0 * MS if work.kind == "all_to_all" else 1.0 * MS


def _played(program: StepProgram) -> StepTrace:
    """Every operation starts when its dependencies and its stream allow; collectives last what `_seconds` says."""
    ranks, start, end, wait = program.world_size, {}, {}, {}
    free: dict[str, np.ndarray] = {}
    for op in program.ops:
        ready = free.get(op.stream, np.zeros(ranks))
        for dep in op.deps:
            ready = np.maximum(ready, end[dep.op])
        if isinstance(op.work, Compute):
            begun, lasts = ready, op.work.seconds
        else:
            last = np.array([ready[members].max() for members in op.work.groups.members])
            begun, lasts = last[op.work.groups.group_of], _seconds(op.work)
        start[op.name], wait[op.name], end[op.name] = ready, begun - ready, begun + lasts
        free[op.stream] = end[op.name]
    infos = tuple(_info(op) for op in program.ops)
    stacked = [np.array(list(times.values())) for times in (start, end, wait)]
    return StepTrace(
        source="predicted", ops=infos, start_s=stacked[0], end_s=stacked[1], wait_s=stacked[2],
        step_time_s=float(stacked[1].max()),
    )  # fmt: skip


def _info(op: Op) -> OpInfo:
    info = None
    if isinstance(op.work, Collective):
        group = op.work.groups
        info = CollectiveInfo(
            kind=op.work.kind, algorithm="made up", group_size=len(group.members[0]), groups=len(group),
            max_bytes_out=64e6, max_bytes_in=64e6, time_s=_seconds(op.work), bound_s=0.5 * MS, bottleneck="a link",
        )  # fmt: skip
    return OpInfo(name=op.name, label=op.label, stage=op.stage, stream=op.stream, batch=op.batch, collective=info)


def _made(ranks: int, group_size: int) -> MadeStep:
    program = _program(ranks, Groups(np.arange(ranks).reshape(-1, group_size)))
    return MadeStep(program, _played(program))


@pytest.fixture(scope="session")
def made_step() -> MadeStep:
    """8 ranks in two sharding groups of 4; rank 5 is slow."""
    return _made(8, 4)


@pytest.fixture(scope="session")
def wide_step() -> MadeStep:
    """64 ranks in sharding groups of 8; rank 61 is slow."""
    return _made(64, 8)

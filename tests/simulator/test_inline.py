"""Programs of CPU ranks against times computed by hand: the host computes, collectives run beside it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from foreshard.simulator.comms.collectives import Lowered, Phase
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective, Compute, Dep, Op, StepProgram
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.step.engine import Engine
from foreshard.simulator.step.inline import inlined
from foreshard.topologies.cluster import Cluster

Mesh = Callable[..., Cluster]


def takes(seconds: float) -> Callable[[Cluster, Collective], tuple[Lowered, ...]]:
    """Every collective takes as long, on no link."""
    nothing = Phase(0.0, np.zeros(0, dtype=np.int64), np.zeros(0), seconds)
    return lambda _, collective: tuple(Lowered("plain", (nothing,), 0.0, "") for _ in collective.groups.members)


def work(name: str, seconds: list[float], *deps: Dep, stream: str = "compute", host_s: float = 0.0) -> Op:
    return Op(
        name=name, label=name, stage="local_compute", stream=stream, work=Compute(seconds=np.array(seconds)),
        deps=deps, host_s=host_s, launches=3,
    )  # fmt: skip


def exchange(name: str, *deps: Dep, stream: str = "comm", host_s: float = 0.0, waits: tuple[Dep, ...] = ()) -> Op:
    traffic = (PairBytes.uniform(2, 1.0),)
    collective = Collective(kind="all_to_all", groups=Groups.world(2), traffic=traffic)
    return Op(
        name=name, label=name, stage="vector_return", stream=stream, work=collective, deps=deps, host_s=host_s,
        host_waits=waits,
    )  # fmt: skip


def run(cluster: Cluster, *ops: Op, steps: int = 1, collective_s: float = 5.0) -> dict[str, list[list[float]]]:
    """Start and end on both ranks of every operation in the last step."""
    program = inlined(StepProgram(world_size=2, ops=ops, warmup_steps=0))
    times = Engine(program, cluster, steps, lowering=takes(collective_s)).run()
    return {op.name: [times.start[-1, i].tolist(), times.end[-1, i].tolist()] for i, op in enumerate(program.ops)}


def test_work_on_other_streams_waits_in_line(mesh: Mesh) -> None:
    """Copying, routing and computing are one thread: 1 s, then 2 s, then 3 s."""
    found = run(
        mesh(2), work("copy", [1, 1], stream="copy"), work("route", [2, 2], stream="data_dist"), work("x", [3, 3])
    )
    assert [found[name][1] for name in ("copy", "route", "x")] == [[1, 1], [3, 3], [6, 6]]


def test_a_collective_starts_when_the_host_has_come_to_it_and_runs_beside_the_work(mesh: Mesh) -> None:
    """After 2 s of work and 1 s of issuing it starts at 3 s; the work behind it goes on from 3 s to 7 s."""
    found = run(mesh(2), work("before", [2, 2]), exchange("a2a", host_s=1.0), work("beside", [4, 4]))
    assert found["a2a"] == [[3, 3], [8, 8]]
    assert found["beside"] == [[3, 3], [7, 7]]


def test_work_that_needs_a_collective_holds_up_all_that_is_behind_it(mesh: Mesh) -> None:
    """The look-up waits for the ids until 5 s, and so does the copy, which needs nothing."""
    found = run(mesh(2), exchange("ids"), work("lookup", [1, 1], Dep("ids")), work("copy", [1, 1], stream="copy"))
    assert found["lookup"] == [[5, 5], [6, 6]]
    assert found["copy"] == [[6, 6], [7, 7]]


def test_a_collective_that_needs_another_one_holds_up_the_host_too(mesh: Mesh) -> None:
    """The second hop is issued when the first is done, also on another stream: the work behind it starts at 5 s."""
    found = run(mesh(2), exchange("hop1"), exchange("hop2", Dep("hop1"), stream="dense_comm"), work("x", [1, 1]))
    assert found["hop2"] == [[5, 5], [10, 10]]
    assert found["x"] == [[5, 5], [6, 6]]


def test_collectives_of_one_stream_run_in_line_without_the_host(mesh: Mesh) -> None:
    """Both are issued at once; the second starts when the first is done, and the host has gone on."""
    found = run(mesh(2), exchange("one"), exchange("two"), work("x", [1, 1]))
    assert found["two"] == [[5, 5], [10, 10]]
    assert found["x"] == [[0, 0], [1, 1]]


def test_what_launches_would_cost_is_part_of_the_work(mesh: Mesh) -> None:
    """3 s of work and 2 s of calling it are 5 s."""
    assert run(mesh(2), work("x", [3, 3], host_s=2.0))["x"] == [[0, 0], [5, 5]]


def test_a_slow_rank_holds_up_the_others_in_the_collective(mesh: Mesh) -> None:
    """Rank 1 comes to the collective at 4 s: both have it at 9 s, and work behind it begins where it is needed."""
    found = run(mesh(2), work("x", [1, 4]), exchange("a2a"), work("y", [2, 2], Dep("a2a")))
    assert found["a2a"] == [[1, 4], [9, 9]]
    assert found["y"] == [[9, 9], [11, 11]]


def test_a_step_follows_the_one_before_on_the_same_thread(mesh: Mesh) -> None:
    """A collective at the head of a step is issued after the work at the tail of the one before: one step is 6 s."""
    ops = (exchange("ids"), work("x", [1, 1], Dep("ids")))
    first, second = (run(mesh(2), *ops, steps=steps)["x"][1][0] for steps in (1, 2))
    assert (first, second) == (6, 12)


def test_what_the_host_waited_for_before_it_still_waits_for(mesh: Mesh) -> None:
    """The values follow their splits, which the host needs to know: issued at 5 s."""
    found = run(mesh(2), exchange("splits", stream="dense_comm"), exchange("values", waits=(Dep("splits"),)))
    assert found["values"] == [[5, 5], [10, 10]]


def test_the_program_keeps_its_operations(mesh: Mesh) -> None:
    """Names, order and collectives, so that a measured trace of the same program lies beside it."""
    ops = (work("x", [1, 1], stream="copy"), exchange("a2a", Dep("x")))
    program = inlined(StepProgram(world_size=2, ops=ops, warmup_steps=3))
    assert [op.name for op in program.ops] == ["x", "a2a"]
    assert program.ops[1].work is ops[1].work
    assert (program.world_size, program.warmup_steps) == (2, 3)
    assert pytest.approx([op.host_s for op in program.ops]) == [0, 0]

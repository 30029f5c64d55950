"""The engine against models small enough to compute by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.comms.collectives import Lowered, Phase
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective, Compute, Dep, Op, StepProgram
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.step.engine import Engine, Timeline
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import DeadlockError, InputError

GB = 1e9
Mesh = Callable[..., Cluster]


def plain(cluster: Cluster, collective: Collective) -> tuple[Lowered, ...]:
    """Every pair's bytes on its own route, no latency: what can be computed by hand."""
    lowered = []
    for index, members in enumerate(collective.groups.members):
        matrix = collective.traffic_of(index).to_matrix()
        src, dst = (axis.ravel() for axis in np.meshgrid(members, members, indexing="ij"))
        links, nbytes = cluster.loads(src, dst, matrix.ravel())
        lowered.append(Lowered("plain", (Phase(0.0, links, nbytes, 0.0),), 0.0, "link"))
    return tuple(lowered)


def compute(name: str, seconds: list[float], stream: str = "compute", **more: object) -> Op:
    return Op(
        name=name, label=name, stage="local_compute", stream=stream, work=Compute(seconds=np.array(seconds)), **more
    )


def exchange(name: str, groups: Groups, matrix: np.ndarray, stream: str = "comm", **more: object) -> Op:
    work = Collective(kind="all_to_all", groups=groups, traffic=(PairBytes.dense(matrix),))
    return Op(name=name, label=name, stage="vector_return", stream=stream, work=work, **more)


def run(cluster: Cluster, *ops: Op, steps: int = 1) -> Timeline:
    program = StepProgram(world_size=cluster.size, ops=ops, warmup_steps=0)
    return Engine(program, cluster, steps, lowering=plain).run()


def test_two_ranks_and_one_link_take_bytes_over_bandwidth(mesh: Mesh) -> None:
    """Each rank sends 3 GB to the other over its own 1 GB/s link: 3 s."""
    times = run(mesh(2), exchange("a2a", Groups.world(2), np.array([[5, 3], [3, 5]]) * GB))
    assert times.end[0, 0].tolist() == [3.0, 3.0]


def test_one_hot_owner_holds_everyone_up(mesh: Mesh) -> None:
    """Ranks 1 and 2 send 4 GB to rank 0 each over links of their own, the rest sends 1 GB: the step takes 4 s."""
    matrix = np.array([[0, 1, 1], [4, 0, 1], [4, 1, 0]]) * GB
    assert run(mesh(3), exchange("a2a", Groups.world(3), matrix)).end[0, 0].tolist() == [4.0, 4.0, 4.0]


def test_two_groups_of_a_2d_layout_exchange_side_by_side(mesh: Mesh) -> None:
    """Groups {0, 1} and {2, 3} use disjoint links: both take as long as one alone."""
    times = run(mesh(4), exchange("a2a", Groups([[0, 1], [2, 3]]), np.array([[0, 2], [2, 0]]) * GB))
    assert times.end[0, 0].tolist() == [2.0] * 4


def test_groups_that_start_apart_end_apart(mesh: Mesh) -> None:
    """A group that joins 5 s later ends 5 s later, and does not hold up the other."""
    times = run(
        mesh(4),
        compute("work", [0.0, 0.0, 5.0, 5.0]),
        exchange("a2a", Groups([[0, 1], [2, 3]]), np.array([[0, 2], [2, 0]]) * GB, deps=(Dep("work"),)),
    )
    assert times.end[0, 1].tolist() == [2.0, 2.0, 7.0, 7.0]


def test_two_collectives_on_one_link_share_it(mesh: Mesh) -> None:
    """Two equal exchanges on different streams over the same link take twice as long as one."""
    matrix = np.array([[0, 2], [0, 0]]) * GB
    times = run(
        mesh(2),
        exchange("one", Groups.world(2), matrix, stream="comm"),
        exchange("two", Groups.world(2), matrix, stream="dense_comm"),
    )
    assert times.end[0].tolist() == [[4.0, 4.0], [4.0, 4.0]]


def test_collectives_of_one_stream_run_one_after_the_other(mesh: Mesh) -> None:
    """On one stream the second begins when the first has ended."""
    matrix = np.array([[0, 2], [0, 0]]) * GB
    times = run(mesh(2), exchange("one", Groups.world(2), matrix), exchange("two", Groups.world(2), matrix))
    assert times.end[0].tolist() == [[2.0, 2.0], [4.0, 4.0]]


def test_communication_can_be_fully_hidden(mesh: Mesh) -> None:
    """A 2 s exchange beside 10 s of compute costs nothing."""
    times = run(
        mesh(2),
        exchange("a2a", Groups.world(2), np.array([[0, 2], [2, 0]]) * GB),
        compute("work", [10.0, 10.0]),
        compute("use", [1.0, 1.0], deps=(Dep("a2a"),)),
    )
    assert times.end[0, 2].tolist() == [11.0, 11.0]


def test_communication_can_be_fully_exposed(mesh: Mesh) -> None:
    """Compute that needs the exchange begins when it has ended, not before."""
    times = run(
        mesh(2),
        exchange("a2a", Groups.world(2), np.array([[0, 2], [2, 0]]) * GB),
        compute("use", [1.0, 1.0], deps=(Dep("a2a"),)),
    )
    assert times.start[0, 1].tolist() == [2.0, 2.0]
    assert times.end[0, 1].tolist() == [3.0, 3.0]


def test_a_late_rank_makes_the_others_wait(mesh: Mesh) -> None:
    """A collective begins when its last member joins; the early ones' wait is visible."""
    times = run(
        mesh(2),
        compute("work", [1.0, 6.0]),
        exchange("a2a", Groups.world(2), np.array([[0, 2], [2, 0]]) * GB, deps=(Dep("work"),)),
    )
    assert times.start[0, 1].tolist() == [1.0, 6.0]
    assert times.begun[0, 1].tolist() == [6.0, 6.0]
    assert times.end[0, 1].tolist() == [8.0, 8.0]


def test_the_host_issues_one_operation_after_the_other(mesh: Mesh) -> None:
    """Ten launches of 1 s each: the first kernel can start after one, the operation ends after all ten."""
    times = run(mesh(2), compute("tiny", [0.0, 0.0], launches=10, host_s=10.0))
    assert times.start[0, 0].tolist() == [1.0, 1.0]
    assert times.end[0, 0].tolist() == [10.0, 10.0]


def test_the_host_stops_where_it_must_wait(mesh: Mesh) -> None:
    """What comes after a waiting point is issued only when the awaited operation has finished."""
    times = run(
        mesh(2),
        compute("work", [7.0, 9.0], stream="data_dist"),
        compute("after", [1.0, 1.0], host_s=2.0, host_waits=(Dep("work"),)),
    )
    assert times.start[0, 1].tolist() == [9.0, 11.0]


def test_dependencies_reach_back_over_steps(mesh: Mesh) -> None:
    """An operation may need what an earlier step made; before the first step all counts as made."""
    times = run(
        mesh(2),
        compute("made", [3.0, 3.0], stream="copy"),
        compute("used", [1.0, 1.0], deps=(Dep("made", 1),)),
        steps=3,
    )
    assert times.end[:, 1, 0].tolist() == [1.0, 4.0, 7.0]


def test_a_member_that_never_joins_is_a_deadlock_by_name(mesh: Mesh) -> None:
    """The error names the collective, who waits and who is missing."""
    with pytest.raises(DeadlockError, match=r"'a2a'.*ranks 0, 2 wait for rank 1, which never joined"):
        run(
            mesh(3),
            compute("hangs", [1.0, float("inf"), 1.0]),
            exchange("a2a", Groups.world(3), np.ones((3, 3)) * GB, deps=(Dep("hangs"),)),
        )


def test_an_operation_that_waits_for_itself_is_a_deadlock(mesh: Mesh) -> None:
    """A cycle among operations is named instead of ending in silence."""
    with pytest.raises(DeadlockError, match="'first'"):
        run(mesh(2), compute("first", [1.0, 1.0], deps=(Dep("second"),)), compute("second", [1.0, 1.0]))


def test_a_collective_of_one_rank_takes_no_time(mesh: Mesh) -> None:
    """A group of one has nothing to move and holds nobody up."""

    def nothing(cluster: Cluster, collective: Collective) -> tuple[Lowered, ...]:
        return tuple(Lowered("none", (), 0.0, "") for _ in collective.groups.members)

    ops = (
        compute("work", [1.0, 2.0]),
        exchange("alone", Groups([[0], [1]]), np.ones((1, 1)), deps=(Dep("work"),)),
        compute("use", [1.0, 1.0], deps=(Dep("alone"),)),
    )
    times = Engine(StepProgram(world_size=2, ops=ops, warmup_steps=0), mesh(2), 1, lowering=nothing).run()
    assert times.end[0, 2].tolist() == [2.0, 3.0]


def test_unknown_dependencies_and_double_names_are_refused(mesh: Mesh) -> None:
    """A program that contradicts itself is refused before it runs."""
    with pytest.raises(InputError, match="'nothing'"):
        run(mesh(2), compute("work", [1.0, 1.0], deps=(Dep("nothing"),)))
    with pytest.raises(InputError, match="same name"):
        run(mesh(2), compute("work", [1.0, 1.0]), compute("work", [1.0, 1.0]))


@given(
    seconds=st.lists(st.lists(st.floats(0, 4), min_size=4, max_size=4), min_size=3, max_size=3),
    sizes=st.lists(st.integers(0, 3), min_size=2, max_size=2),
)
def test_events_do_not_grow_with_ranks_and_order_is_kept(mesh: Mesh, seconds: list, sizes: list) -> None:
    """Nothing ends before it starts, streams keep their order, and a step's events are its collectives."""
    groups = Groups.world(4)
    times = run(
        mesh(4),
        compute("a", seconds[0]),
        exchange("x", groups, np.full((4, 4), sizes[0] * GB), deps=(Dep("a"),)),
        compute("b", seconds[1], deps=(Dep("x"),)),
        exchange("y", groups, np.full((4, 4), sizes[1] * GB), deps=(Dep("a"),)),
        compute("c", seconds[2], deps=(Dep("y"),)),
        steps=2,
    )
    assert (times.end >= times.begun).all()
    assert (times.begun >= times.start).all()
    compute_ops, comm_ops = times.end[:, [0, 2, 4]].reshape(-1, 4), times.end[:, [1, 3]].reshape(-1, 4)
    assert (np.diff(compute_ops, axis=0) >= 0).all()
    assert (np.diff(comm_ops, axis=0) >= 0).all()
    assert times.events <= 2 * 2 * 6

"""CPU ranks share cores with what carries their collectives: times by hand, and rules for any program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.comms.collectives import Lowered, Phase
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective, Compute, Dep, Op, StepProgram
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.step.engine import Engine, Timeline
from foreshard.simulator.step.inline import inlined
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.presets import load_preset

Mesh = Callable[..., Cluster]


def takes(seconds: float, beside: float, slows: float) -> Callable[[Cluster, Collective], tuple[Lowered, ...]]:
    """Every collective takes as long alone, on no link."""
    nothing = Phase(0.0, np.zeros(0, dtype=np.int64), np.zeros(0), seconds)
    return lambda _, collective: tuple(
        Lowered("measured", (nothing,), 0.0, "", beside=beside, slows=slows) for _ in collective.groups.members
    )


def work(name: str, seconds: Sequence[float], *deps: Dep) -> Op:
    return Op(
        name=name, label=name, stage="local_compute", stream="compute", work=Compute(seconds=np.array(seconds)),
        deps=deps,
    )  # fmt: skip


def exchange(name: str, ranks: int, *deps: Dep) -> Op:
    collective = Collective(kind="all_to_all", groups=Groups.world(ranks), traffic=(PairBytes.uniform(ranks, 1.0),))
    return Op(name=name, label=name, stage="vector_return", stream="comm", work=collective, deps=deps)


def run(
    cluster: Cluster, *ops: Op, alone_s: float, beside: float = 1.0, slows: float = 1.0, steps: int = 1,
    shares_cores: bool = True,
) -> Timeline:  # fmt: skip
    program = inlined(StepProgram(world_size=cluster.size, ops=ops, warmup_steps=0))
    return Engine(program, cluster, steps, takes(alone_s, beside, slows), shares_cores=shares_cores).run()


def test_a_collective_that_outlives_the_work_beside_it_goes_on_at_its_own_speed(mesh: Mesh) -> None:
    """2 s of work take 4 s; by then 4/3 s of 6 s are done, the rest takes as long as alone."""
    times = run(mesh(2), exchange("a2a", 2), work("beside", [2, 2]), alone_s=6, beside=3, slows=2)
    assert times.end[0, 1] == pytest.approx([4, 4])
    assert times.end[0, 0] == pytest.approx([4 + 6 - 4 / 3] * 2)


def test_work_that_outlives_the_collective_goes_on_at_its_own_speed(mesh: Mesh) -> None:
    """2 s alone take 6 s beside work, of which 3 s are done by then: the fourth ends a second later."""
    times = run(mesh(2), exchange("a2a", 2), work("beside", [4, 4]), alone_s=2, beside=3, slows=2)
    assert times.end[0, 0] == pytest.approx([6, 6])
    assert times.end[0, 1] == pytest.approx([7, 7])


def test_a_collective_suffers_by_the_share_of_ranks_that_compute() -> None:
    """Two of a node's four ranks work: 2 s take half of the way from 2 s to 6 s."""
    times = run(
        load_preset("cpu-host"), exchange("a2a", 4), work("beside", [9, 9, 0, 0]), alone_s=2, beside=3
    )  # fmt: skip
    assert times.end[0, 0] == pytest.approx([4] * 4)


def test_the_next_collective_is_in_nobodys_way_before_it_starts(mesh: Mesh) -> None:
    """Ranks work for 1 s and for 5 s before they exchange: nothing is slowed down while the first one waits."""
    times = run(mesh(2), work("before", [1, 5]), exchange("a2a", 2, Dep("before")), alone_s=2, beside=3, slows=2)
    assert times.end[0, 0] == pytest.approx([1, 5])
    assert times.end[0, 1] == pytest.approx([7, 7])


@st.composite
def programs(draw: st.DrawFn) -> list[Op]:
    """Work and collectives of four ranks in any order, each after some of those before it."""
    ops: list[Op] = []
    seconds = st.floats(0.0, 4.0)
    for place in range(draw(st.integers(1, 8))):
        deps = [Dep(op.name) for op in ops if draw(st.booleans())]
        if draw(st.booleans()):
            ops.append(work(f"op{place}", draw(st.lists(seconds, min_size=4, max_size=4)), *deps))
        else:
            ops.append(exchange(f"op{place}", 4, *deps))
    return ops


@settings(deadline=None)
@given(ops=programs(), alone_s=st.floats(0.1, 4.0))
def test_cores_that_nobody_has_to_share_change_nothing(ops: list[Op], alone_s: float) -> None:
    cluster = load_preset("cpu-host")
    shared = run(cluster, *ops, alone_s=alone_s, steps=2)
    plain = run(cluster, *ops, alone_s=alone_s, steps=2, shares_cores=False)
    np.testing.assert_allclose(shared.end, plain.end, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(ops=programs(), alone_s=st.floats(0.1, 4.0), beside=st.floats(1.0, 20.0), slows=st.floats(1.0, 3.0))
def test_no_operation_is_quicker_or_slower_than_its_factor_allows(
    ops: list[Op], alone_s: float, beside: float, slows: float
) -> None:
    """Collectives take alone_s to beside times that, work its seconds to slows times those."""
    times = run(load_preset("cpu-host"), *ops, alone_s=alone_s, beside=beside, slows=slows, steps=2)
    for index, op in enumerate(ops):
        took = (times.end - times.begun)[:, index]
        least = np.full(4, alone_s) if isinstance(op.work, Collective) else op.work.seconds
        most = least * (beside if isinstance(op.work, Collective) else slows)
        assert (took >= least - 1e-9).all()
        assert (took <= most + 1e-9).all()

"""Where a rank's step time goes: every second is compute, a stage waited for, or idle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.job.program import STAGES
from foreshard.simulator.job.trace import OpInfo, StepTrace
from foreshard.simulator.results.exposure import breakdown, slowest_rank

Row = tuple[str, str, str, float, float]


def trace(period: float, *rows: Row) -> StepTrace:
    """A trace of one rank: (name, stage, stream, start, end)."""
    ops = tuple(
        OpInfo(name=name, label=name, stage=stage, stream=stream, batch=0) for name, stage, stream, _, _ in rows
    )
    times = np.array([[row[3], row[4]] for row in rows])
    wait = np.zeros((len(rows), 1))
    return StepTrace(
        source="predicted", ops=ops, start_s=times[:, :1], end_s=times[:, 1:], wait_s=wait, step_time_s=period
    )


FORWARD = ("forward", "local_compute", "compute")
EXCHANGE = ("output_dist", "vector_return", "comm")
COPY = ("copy", "batch_input", "copy")


def test_a_fully_exposed_exchange_is_its_stages_exposed_time() -> None:
    """lookup 0-1, exchange 1-4, forward 4-6: three of six seconds are waited for the vectors."""
    step = trace(6.0, ("lookup", "vector_return", "compute", 0, 1), (*EXCHANGE, 1, 4), (*FORWARD, 4, 6))
    parts = breakdown(step, 0)
    vectors = parts.stages["vector_return"]
    assert (vectors.time_s, vectors.compute_s, vectors.exposed_s) == (4.0, 1.0, 3.0)
    assert (parts.compute_s, parts.idle_s, parts.exposed_s) == (3.0, 0.0, {"output_dist": 3.0})


def test_a_fully_hidden_exchange_is_not_exposed() -> None:
    step = trace(6.0, (*FORWARD, 0, 6), (*EXCHANGE, 1, 5))
    parts = breakdown(step, 0)
    assert parts.exposed_s == {}
    assert parts.stages["vector_return"].time_s == 4.0


def test_only_the_part_outside_compute_is_exposed() -> None:
    """Compute 0-2 and 5-6, exchange 1-4: exposed 2 to 4, and 4 to 5 is nobody's (a launch): idle."""
    step = trace(6.0, ("lookup", "vector_return", "compute", 0, 2), (*EXCHANGE, 1, 4), (*FORWARD, 5, 6))
    parts = breakdown(step, 0)
    assert (parts.exposed_s, parts.idle_s) == ({"output_dist": 2.0}, 1.0)


def test_the_operation_that_ended_last_is_the_one_waited_for() -> None:
    """Two exchanges in a gap from 1 to 5: ids until 3, vectors from 3 to 5; a long copy goes on and is not awaited."""
    ids = ("values", "lookup_routing", "comm")
    step = trace(
        6.0, ("permute", "lookup_routing", "compute", 0, 1), (*ids, 1, 3), (*EXCHANGE, 3, 5), (*COPY, 0, 6),
        (*FORWARD, 5, 6),
    )  # fmt: skip
    assert breakdown(step, 0).exposed_s == {"values": 2.0, "output_dist": 2.0}


def test_an_operation_of_the_neighbouring_step_explains_a_gap_too() -> None:
    """The pipeline's exchange ends after its own step: compute 0-3 of 5, exchange 4-6 is 4-5 here and 0-1 next."""
    step = trace(5.0, (*FORWARD, 1, 5), (*EXCHANGE, 4, 6))
    assert breakdown(step, 0).exposed_s == {"output_dist": pytest.approx(1.0)}


@st.composite
def traces(draw: st.DrawFn) -> StepTrace:
    """Compute operations one after the other in a step, and others anywhere near it."""
    cuts = sorted(draw(st.lists(st.floats(0, 10), min_size=2, max_size=12)))
    stage = st.sampled_from(STAGES)
    pairs = zip(cuts[::2], cuts[1::2], strict=False)
    rows = [(f"c{i}", draw(stage), "compute", start, end) for i, (start, end) in enumerate(pairs)]
    spans = draw(st.lists(st.tuples(st.floats(-5, 12), st.floats(0, 8)), max_size=8))
    streams = st.sampled_from(["comm", "dense_comm", "copy", "data_dist"])
    rows += [(f"o{i}", draw(stage), draw(streams), start, start + length) for i, (start, length) in enumerate(spans)]
    return trace(max(cuts[-1] - cuts[0], 1e-3) * draw(st.floats(1, 2)), *rows)


@given(step=traces())
def test_compute_exposed_and_idle_sum_to_the_step(step: StepTrace) -> None:
    parts = breakdown(step, 0)
    exposed = sum(stage.exposed_s for stage in parts.stages.values())
    assert parts.compute_s + exposed + parts.idle_s == pytest.approx(step.step_time_s, rel=1e-9)
    assert sum(parts.exposed_s.values()) == pytest.approx(exposed)
    assert parts.idle_s >= 0
    assert all(seconds >= 0 for seconds in parts.exposed_s.values())


@given(step=traces())
def test_exposed_is_never_more_than_the_time_without_compute_that_the_operation_covers(step: StepTrace) -> None:
    """A slow count on a fine grid of instants: covered by the operation, at any period, and by no compute."""
    parts = breakdown(step, 0)
    period = step.step_time_s
    end = max(step.end_s[i, 0] for i, op in enumerate(step.ops) if op.stream == "compute")
    grid = end - period + (np.arange(4000) + 0.5) * period / 4000
    busy = np.zeros(len(grid), dtype=bool)
    for i, op in enumerate(step.ops):
        if op.stream == "compute":
            busy |= (grid >= step.start_s[i, 0]) & (grid < step.end_s[i, 0])
    for i, op in enumerate(step.ops):
        if op.stream != "compute":
            covered = np.zeros(len(grid), dtype=bool)
            for shift in range(-2, 3):
                covered |= (grid >= step.start_s[i, 0] + shift * period) & (grid < step.end_s[i, 0] + shift * period)
            most = float((covered & ~busy).mean()) * period
            assert parts.exposed_s.get(op.name, 0.0) <= most + 0.01 * period


def test_the_mix_of_two_steps_keeps_the_sum() -> None:
    plain = breakdown(trace(3.0, (*FORWARD, 1, 3), (*EXCHANGE, 0, 1)), 0)
    long = breakdown(trace(9.0, (*FORWARD, 1, 3), ("sync", "dense_gradient_sync", "comm", 3, 9), (*EXCHANGE, 0, 1)), 0)
    mixed = plain.mixed(long, 0.25)
    exposed = sum(stage.exposed_s for stage in mixed.stages.values())
    assert mixed.step_time_s == pytest.approx(3.0 + 0.25 * 6)
    assert mixed.compute_s + exposed + mixed.idle_s == pytest.approx(mixed.step_time_s)


def test_the_slowest_rank_is_the_one_the_others_wait_for(made_step) -> None:  # type: ignore[no-untyped-def]
    """Rank 5 owns twice the rows; everyone else waits for it in the exchanges."""
    assert slowest_rank(made_step.trace) == 5

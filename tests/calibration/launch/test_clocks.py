"""Offsets of clocks by the quickest exchange, drift in between, and clocks that ranks share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.calibration.launch.clocks import (
    ClockOffset,
    CommonClock,
    Exchange,
    best_offset,
    clock_id,
    shared_offsets,
)

delays = st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0)), min_size=1, max_size=20)


@given(st.floats(-1e3, 1e3), delays)
def test_the_offset_is_right_to_within_its_uncertainty_whatever_the_delays(offset, delays):
    """Rank 0's clock is ahead by `offset`; each exchange takes its time there and back."""
    exchanges, now = [], 100.0
    for there, back in delays:
        exchanges.append(Exchange(now, now + there + offset, now + there + back))
        now += there + back
    found = best_offset(exchanges)
    assert abs(found.offset_s - offset) <= found.uncertainty_s + 1e-9
    assert found.uncertainty_s == pytest.approx(min(there + back for there, back in delays) / 2, abs=1e-9)


@given(st.floats(-1e3, 1e3), st.floats(-1e-4, 1e-4), st.floats(1.0, 1e4))
def test_a_clock_that_drifts_evenly_is_put_right_everywhere_between(offset, drift, span):
    """The true clock is offset + (1 + drift) x own."""
    ends = [ClockOffset(at, offset + drift * at, 0.0) for at in (0.0, span)]
    own = np.linspace(0.0, span, 7)
    assert CommonClock(*ends).to_common(own) == pytest.approx(offset + (1 + drift) * own, rel=1e-9, abs=1e-6)


def test_times_that_are_missing_stay_missing():
    same = ClockOffset(0.0, 1.0, 0.0)
    assert np.isnan(CommonClock(same, same).to_common(np.array([np.nan]))).all()


def test_ranks_that_read_one_clock_share_the_most_certain_offset():
    found = [
        ClockOffset(1.0, 0.0, 0.0),
        ClockOffset(2.0, 0.1, 0.3),
        ClockOffset(3.0, 0.5, 0.2),
        ClockOffset(4.0, 9.0, 9.0),
    ]
    shared = shared_offsets(["a", "b", "b", "a"], found)
    assert shared == [found[0], found[2], found[2], found[0]]


def test_the_clock_of_a_process_keeps_its_name():
    """Where the kernel names it; elsewhere each call gives a new one, and nothing is shared."""
    assert clock_id() == clock_id() or len(clock_id()) == 32

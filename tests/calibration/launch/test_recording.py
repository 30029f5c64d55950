"""What is recorded is when things happened: true ends, late members, one clock."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

KINDS = ("all_to_all", "all_reduce", "reduce_scatter", "all_gather", "broadcast")
LATE_S, SHIFT_S = 0.2, 5.0


@pytest.fixture(scope="module")
def told(run_of_module):
    """What two ranks recorded."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    code, out, err = run_of_module.finish(run_of_module.start([*launch, Path(__file__).with_name("recording.py")]))
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("kind", KINDS)
def test_a_collective_ends_when_it_is_done_not_when_it_is_waited_for(told, kind):
    """Rank 0 waits half a second after rank 1 has told that it is done."""
    index = KINDS.index(kind)
    start, end = np.array(told["start_s"][index]), np.array(told["end_s"][index])
    assert (start <= end).all()
    assert end[0] < told["waited"][index]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "broadcast"])
def test_no_member_ends_before_the_last_has_joined(told, kind):
    """The sender of a broadcast waits for nobody."""
    index = KINDS.index(kind)
    start, end = np.array(told["start_s"][index]), np.array(told["end_s"][index])
    assert start[1] - start[0] > LATE_S / 2
    assert end.min() >= start[1] - max(uncertainty for _, uncertainty in told["clocks"][1])


def test_bytes_are_those_the_interpreter_told(told):
    assert told["sent_bytes"][:5] == [[index, index] for index in range(5)]


def test_clocks_that_are_shifted_are_found_to_within_the_uncertainty(told):
    shifted, true, shared = told["clocks"][1]
    assert abs(shifted[0] + SHIFT_S) <= shifted[1]
    assert abs(true[0]) <= true[1]
    assert shared == [0.0, 0.0]  # both read one kernel's clock
    assert told["clocks"][0] == [[0.0, 0.0]] * 3

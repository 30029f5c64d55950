"""A run that ends early ends in seconds, on every rank with the sentence that names rank and operation."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ,
    reason="ends runs within seconds, which needs both cores: run this file alone, without -n",
)

_LIMIT_S = 2.0


def told(err, rank):
    """What a rank said on stderr."""
    return [line for line in err.splitlines() if line.startswith(f"[rank {rank}]")]


def test_a_run_that_ends_well_says_nothing_and_leaves_nothing(ranks):
    code, out, err = ranks.finish(ranks.torchrun(3, {}))
    assert code == 0
    assert '"steps": 4' in out
    assert not [line for rank in range(3) for line in told(err, rank)]
    assert not ranks.left()


@pytest.mark.parametrize("op", ["lookup", "forward"])
def test_an_exception_is_told_on_every_rank_with_its_rank_operation_and_step(ranks, op):
    order = {"misdeed": {"rank": 1, "step": 2, "op": op, "how": "raise"}}
    code, _, err = ranks.finish(ranks.torchrun(3, order))
    assert code != 0
    for rank in range(3):
        assert told(err, rank) == [
            f"[rank {rank}] error: rank 1 failed in operation '{op}' of step 2: ValueError: a table of no rows"
        ]
    assert not ranks.left()


def test_an_error_of_the_input_ends_all_ranks_with_code_2(ranks):
    processes = ranks.by_hand(range(3), 3, {"misdeed": {"rank": 2, "op": "setup", "how": "refuse"}})
    for rank, process in enumerate(processes):
        code, _, err = ranks.finish(process)
        assert code == 2
        assert told(err, rank) == [
            f"[rank {rank}] error: rank 2, reading the scenario: a table has no rows: give it some"
        ]
    assert not ranks.left()


@pytest.mark.parametrize("how", ["kill", "exit"])
@pytest.mark.parametrize("dead", [0, 2])
def test_a_rank_whose_process_ends_is_named_by_all_others(ranks, dead, how):
    code, _, err = ranks.finish(ranks.torchrun(3, {"misdeed": {"rank": dead, "step": 1, "op": "forward", "how": how}}))
    assert code != 0
    for rank in {0, 1, 2} - {dead}:
        (line,) = told(err, rank)
        assert line.startswith(f"[rank {rank}] error: rank {dead} died in operation 'forward' of step 1")
    assert not ranks.left()


@pytest.mark.parametrize("dead", [0, 1])
def test_without_torchrun_a_rank_whose_process_ends_is_named_too(ranks, dead):
    """Rank 0 holds the store then: it goes with it."""
    order = {"misdeed": {"rank": dead, "step": 1, "op": "forward", "how": "kill"}}
    for rank, process in enumerate(ranks.by_hand(range(3), 3, order)):
        code, _, err = ranks.finish(process)
        if rank == dead:
            assert code == -signal.SIGKILL
            continue
        assert code == 1
        (line,) = told(err, rank)
        assert f"rank {dead}" in line
        assert "operation 'forward' of step 1" in line
    assert not ranks.left()


@pytest.mark.parametrize("how", ["hang", "stop"])
@pytest.mark.parametrize("op", ["lookup", "forward", "dense_all_reduce"])
def test_a_rank_that_does_nothing_is_named_as_soon_as_the_limit_is_over(ranks, op, how):
    """A sleeping rank says so itself too; a stopped one cannot, and is killed."""
    begun = time.monotonic()
    order = {"hang_s": _LIMIT_S, "misdeed": {"rank": 1, "step": 2, "op": op, "how": how}}
    code, _, err = ranks.finish(ranks.torchrun(3, order))
    assert code != 0
    assert time.monotonic() - begun < 60
    for rank in (0, 1, 2) if how == "hang" else (0, 2):
        (line,) = told(err, rank)
        assert f"error: rank 1 hangs in operation '{op}' of step 2: nothing moved for 2 s" in line
    assert not ranks.left()


def test_a_rank_that_is_stopped_before_the_first_step_has_no_more_time_than_in_one(ranks):
    """Others may fill tables for ten times as long; a stopped process does nothing."""
    order = {"hang_s": _LIMIT_S, "misdeed": {"rank": 1, "op": "setup", "how": "stop"}}
    code, _, err = ranks.finish(ranks.torchrun(3, order))
    assert code != 0
    for rank in (0, 2):
        (line,) = told(err, rank)
        assert "error: rank 1 hangs in reading the scenario: nothing moved for 2 s" in line
    assert not ranks.left()


def test_a_run_that_is_stopped_as_a_whole_and_goes_on_has_not_hung(ranks, tmp_path):
    """As by Ctrl-Z and fg: for twice the limit, in operations that take a while."""
    file = tmp_path / "told"
    order = {"hang_s": _LIMIT_S, "steps": 20, "lookup_s": 0.5, "tell_at": 2, "told": str(file)}
    process = ranks.torchrun(3, order)
    wait_for(file)
    for which in (signal.SIGSTOP, signal.SIGCONT):
        for pid in ranks.alive():
            os.kill(pid, which)
        time.sleep(4 * _LIMIT_S if which == signal.SIGSTOP else 0)
    code, _, err = ranks.finish(process)
    assert (code, [told(err, rank) for rank in range(3)]) == (0, [[], [], []])
    assert not ranks.left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_launcher_leaves_no_rank_behind(ranks, tmp_path, number):
    process = started(ranks, tmp_path)
    process.send_signal(number)
    code, _, err = ranks.finish(process)
    assert code != 0
    assert all("in operation" in line for rank in range(3) for line in told(err, rank))
    assert not ranks.left()


def test_ranks_end_when_their_launcher_is_killed(ranks, tmp_path):
    process = started(ranks, tmp_path)
    process.kill()
    ranks.finish(process)
    assert not ranks.left()


def started(ranks, tmp_path):
    """A run of three ranks that has come to its second step and will go on for long."""
    file = tmp_path / "told"
    process = ranks.torchrun(3, {"steps": 100_000, "lookup_s": 0.05, "tell_at": 1, "told": str(file)})
    wait_for(file)
    return process


def wait_for(file):
    """Until a file is there."""
    until = time.monotonic() + 60
    while not Path(file).exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert file.exists()

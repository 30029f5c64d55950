"""Ranks started on this machine: exit codes, and what is said of a rank that could not say it itself."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress

import pytest

from foreshard.calibration.launch.wording import killed, ranks_counted, ranks_named

LAUNCH = """
import json, sys
from foreshard.calibration.launch.launcher import run_here
sys.exit(run_here(*json.loads(sys.argv[1])))
"""
RANK_1_DOES = "import os, sys, time; {} if os.environ['RANK'] == '1' else time.sleep({})"


def launched(ranks, folder, does, others_s):
    """(Exit code, stdout, stderr) of two ranks, of which rank 1 does something and the other sleeps."""
    return ranks.finish(start(ranks, folder, RANK_1_DOES.format(does, others_s)))


def start(ranks, folder, does):
    """Two ranks that run a module of these statements."""
    (folder / "rank_module.py").write_text(does, encoding="utf-8")
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-c", LAUNCH, json.dumps([["rank_module"], 2])]
    return ranks.start(command, PYTHONPATH=path)


def test_a_rank_that_is_killed_before_it_joins_is_named(ranks, tmp_path):
    """It cannot say so, and the others do not know it yet."""
    code, out, err = launched(ranks, tmp_path, "os.kill(os.getpid(), 9)", 60)
    assert (code, out) == (1, "")
    assert err == "error: rank 1 was ended by SIGKILL: was it out of memory (dmesg tells)?\n"
    assert not ranks.left()


@pytest.mark.parametrize(("exits", "code"), [(0, 0), (2, 2), (7, 1)])
def test_exit_codes_are_those_of_the_run_and_nothing_is_added(ranks, tmp_path, exits, code):
    assert launched(ranks, tmp_path, f"sys.exit({exits})", 0) == (code, "", "")


def test_an_interrupt_before_ranks_join_ends_them_without_a_word(ranks, tmp_path):
    """As at a terminal, where it reaches all of them."""
    does = f"import os, pathlib, time; pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).touch(); time.sleep(60)"
    process = start(ranks, tmp_path, does)
    until = time.monotonic() + 60
    while not all((tmp_path / rank).exists() for rank in "01") and time.monotonic() < until:
        time.sleep(0.05)
    for pid in ranks.alive():
        with suppress(ProcessLookupError):  # the first ones to end take others with them
            os.kill(pid, signal.SIGINT)
    code, out, err = ranks.finish(process)
    assert code != 0
    assert (out, "Traceback" in err, "KeyboardInterrupt" in err) == ("", False, False)
    assert not ranks.left()


def test_ranks_in_words():
    assert killed(0, 11) == "rank 0 was ended by SIGSEGV"
    assert killed(3, 99) == "rank 3 was ended by signal 99"
    assert [ranks_counted(number) for number in (1, 2)] == ["1 rank", "2 ranks"]
    assert ranks_named([4]) == "rank 4"
    assert ranks_named(range(10)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"

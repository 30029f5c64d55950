"""Positions of ranks are ordered as the loop passes them: those that others wait for are behind."""

from __future__ import annotations

import itertools

import pytest

from foreshard.calibration.launch.progress import Progress


def test_every_report_is_further_than_the_one_before_it_within_a_run():
    progress = Progress()
    moves = [
        lambda: progress.phase("building tables"),
        lambda: progress.step(0),
        lambda: progress.compute(0, "lookup"),
        lambda: progress.passed("lookup"),
        lambda: progress.issues(1, "output_dist"),
        lambda: progress.passed("output_dist"),
        lambda: progress.waits("output_dist"),
        lambda: progress.compute(2, "forward"),
        lambda: progress.step(1),
        lambda: progress.phase("gathering"),
        lambda: progress.phase("reporting"),
    ]
    orders = [progress.at.order]
    for move in moves:
        move()
        orders.append(progress.at.order)
    assert all(before < after for before, after in itertools.pairwise(orders))


@pytest.mark.parametrize("name", ["compute", "issues"])
def test_a_rank_that_waits_is_ahead_of_one_that_is_busy_in_the_same_operation(name):
    busy, waiting = Progress(), Progress()
    for progress in (busy, waiting):
        progress.step(3)
        getattr(progress, name)(4, "output_dist")
    waiting.passed("output_dist")
    waiting.waits("lookup")  # of an earlier operation: it is no further back for that
    assert busy.at.order < waiting.at.order


def test_positions_are_words():
    progress = Progress()
    progress.phase("reading the scenario")
    assert progress.at.words() == "reading the scenario"
    progress.step(2)
    progress.compute(0, "lookup.row_wise")
    assert progress.at.words() == "operation 'lookup.row_wise' of step 2"
    progress.phase("gathering")
    assert progress.at.words() == "gathering"

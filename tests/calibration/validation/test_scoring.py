"""Scores of predictions, by hand and as rules."""

from dataclasses import replace
from itertools import combinations
from math import floor, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.calibration.validation.records import Outcome
from foreshard.calibration.validation.scoring import errors_of, pairs_in_order, score, stage_errors
from foreshard.calibration.validation.validate_text import validation_dict, validation_text


def _outcome(measured, predicted, *, bed="a", job="j", low=0.9, high=1.1, stages=(1.0, 1.0)):
    return Outcome(
        bed=bed, job=job, way=f"{measured}", runs_s=(measured, measured * 1.02), predicted_s=predicted,
        interval_s=(predicted * low, predicted * high), estimate_s=predicted / 3,
        stages_measured_s={"vector_return": stages[0]}, stages_predicted_s={"vector_return": stages[1]},
    )  # fmt: skip


def _score(outcomes):
    return score(outcomes, lambda one: one.predicted_s, intervals=True)


def test_errors_are_relative_and_count_both_ways():
    found = errors_of([0.5, 1.0, 1.5, 3.0], [1.0, 1.0, 1.0, 1.0])
    assert (found.count, found.median, found.worst) == (4, 0.5, 2.0)


def test_perfect_predictions_score_perfectly():
    outcomes = [_outcome(t, t * 1.01) for t in (1.0, 2.0, 3.0)]
    found = _score(outcomes)
    assert found.errors.worst == pytest.approx(0.0, abs=1e-9)
    assert (found.tau, found.best_found, found.best_loss, found.coverage) == (1.0, 1.0, 0.0, 1.0)


def test_a_reversed_order_has_tau_of_minus_one_and_finds_the_worst():
    outcomes = [_outcome(1.0, 3.0), _outcome(2.0, 2.0), _outcome(4.0, 1.0)]
    found = _score(outcomes)
    assert found.tau == -1.0
    assert found.best_found == 0.0
    assert found.best_loss == pytest.approx(3.0)


def test_orders_are_compared_within_a_testbed_only():
    outcomes = [_outcome(1.0, 9.0, bed="a"), _outcome(2.0, 9.5, bed="a"), _outcome(3.0, 1.0, bed="b")]
    assert pairs_in_order(outcomes, lambda one: one.predicted_s) == (1, 1)
    assert _score(outcomes).tau == 1.0


def test_a_step_outside_its_interval_is_not_covered():
    assert _score([_outcome(1.0, 1.0), _outcome(1.0, 2.0)]).coverage == 0.5


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=2, max_size=8))
def test_scaling_all_times_changes_no_score(pairs):
    first = _score([_outcome(m, p) for m, p in pairs])
    scaled = _score([_outcome(4 * m, 4 * p) for m, p in pairs])
    assert scaled.errors.median == pytest.approx(first.errors.median)
    assert scaled.best_found == first.best_found


def slow_quantile(values, share):
    """Between the two values around its place in their order, in proportion."""
    ordered, place = sorted(values), share * (len(values) - 1)
    below = floor(place)
    above = min(below + 1, len(values) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def sign(number):
    return (number > 0) - (number < 0)


def slow_tau(pairs):
    """Kendall's tau-b: pairs in order less pairs in disorder, over the root of those not tied on either side."""
    both = [(sign(a[0] - b[0]), sign(a[1] - b[1])) for a, b in combinations(pairs, 2)]
    untied = [sum(side != 0 for side in column) for column in zip(*both, strict=True)]
    return sum(a * b for a, b in both) / sqrt(untied[0] * untied[1])


FEW = st.integers(1, 6).map(float)  # few values, so that many are equal
BEDS = st.lists(st.lists(st.tuples(FEW, FEW), min_size=3, max_size=7), min_size=1, max_size=3)


@given(BEDS.filter(lambda beds: all(len(set(side)) > 1 for bed in beds for side in zip(*bed, strict=True))))
def test_scores_are_those_of_a_slow_count(beds):
    """Measured and predicted times with many ties on one to three testbeds."""
    outcomes = [_outcome(m, p, bed=str(place)) for place, bed in enumerate(beds) for m, p in bed]
    found = _score(outcomes)
    off = [abs(one.predicted_s / one.measured_s - 1) for one in outcomes]
    assert found.errors.count == len(off)
    assert found.errors.median == pytest.approx(slow_quantile(off, 0.5))
    assert found.errors.p90 == pytest.approx(slow_quantile(off, 0.9))
    assert found.errors.worst == max(off)
    assert found.tau == pytest.approx(sum(map(slow_tau, beds)) / len(beds))
    inside = [0.9 * one.predicted_s <= one.measured_s <= 1.1 * one.predicted_s for one in outcomes]
    assert found.coverage == pytest.approx(sum(inside) / len(inside))
    pairs = [pair for bed in beds for pair in combinations(bed, 2)]
    right = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
    assert pairs_in_order(outcomes, lambda one: one.predicted_s) == (right, len(pairs))


@given(BEDS)
def test_the_best_way_is_looked_for_in_every_job_of_every_bed(beds):
    outcomes = [
        _outcome(m, p, bed="one bed", job=str(place)) for place, bed in enumerate(beds) for m, p in bed
    ]  # fmt: skip
    found = _score(outcomes)
    losses = []
    for bed in beds:
        least = min(p for _, p in bed)
        chosen = next(m for m, p in bed if p == least)
        losses.append(chosen / min(m for m, _ in bed) - 1)
    assert found.contests == len(beds)
    assert found.best_found == pytest.approx(sum(loss == 0 for loss in losses) / len(beds))
    assert found.best_loss == pytest.approx(max(losses))


def test_noise_is_the_longest_over_the_shortest_run_and_measured_the_median():
    one = replace(_outcome(1.0, 1.0), runs_s=(2.0, 1.0, 4.0))
    assert (one.noise, one.measured_s, one.error) == (3.0, 2.0, -0.5)


def test_the_noise_floor_is_told_as_errors_are():
    """Runs 1, 2, 3 and 4 % apart: median 2.5 %, 90th percentile 3.7 %, as the quantiles of four values are."""
    outcomes = [replace(_outcome(1.0, 1.0), runs_s=(1.0, 1.0 + off)) for off in (0.01, 0.04, 0.02, 0.03)]
    assert "median 2.5%, 90th percentile 3.7%, worst 4.0%" in validation_text(outcomes)


def test_stages_that_hardly_count_have_no_error():
    assert stage_errors([_outcome(1.0, 1.0, stages=(0.001, 0.5))]) == {}
    assert stage_errors([_outcome(1.0, 1.0, stages=(0.5, 0.4))])["vector_return"].worst == pytest.approx(0.2)
    assert stage_errors([_outcome(1.0, 9.0, stages=(0.03, 0.4))])  # 2 % of what was measured, not of what was predicted


def test_the_text_has_every_configuration_and_the_json_too():
    outcomes = [_outcome(1.0, 1.1), _outcome(2.0, 1.9)]
    text, values = validation_text(outcomes), validation_dict(outcomes, {"created": "now"})
    assert all(one.way in text for one in outcomes)
    assert len(values["configurations"]) == 2
    assert values["scores"]["foreshard"]["errors"]["count"] == 2

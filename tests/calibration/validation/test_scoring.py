"""Scores of predictions, by hand and as rules."""

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


def test_stages_that_hardly_count_have_no_error():
    assert stage_errors([_outcome(1.0, 1.0, stages=(0.001, 0.5))]) == {}
    assert stage_errors([_outcome(1.0, 1.0, stages=(0.5, 0.4))])["vector_return"].worst == pytest.approx(0.2)


def test_the_text_has_every_configuration_and_the_json_too():
    outcomes = [_outcome(1.0, 1.1), _outcome(2.0, 1.9)]
    text, values = validation_text(outcomes), validation_dict(outcomes, {"created": "now"})
    assert all(one.way in text for one in outcomes)
    assert len(values["configurations"]) == 2
    assert values["scores"]["foreshard"]["errors"]["count"] == 2

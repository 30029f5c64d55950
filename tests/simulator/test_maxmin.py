"""Max-min fair rates against an obvious oracle, SciPy's linear programming and the definition of fairness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from foreshard.simulator.comms.maxmin import max_min_rates

TOLERANCE = 1e-6


def oracle(capacity, usage, ceiling):
    """Raise all rates together; freeze whoever meets a full link or its ceiling; go on. usage [coflows, links]."""
    coflows, links = usage.shape
    rate, frozen = np.zeros(coflows), np.zeros(coflows, dtype=bool)
    while not frozen.all():
        steps = [ceiling[c] - rate[c] for c in range(coflows) if not frozen[c]]
        for link in range(links):
            demand = sum(usage[c, link] for c in range(coflows) if not frozen[c])
            if demand > 0:
                steps.append((capacity[link] - usage[:, link] @ rate) / demand)
        step = max(0.0, min(steps))
        rate[~frozen] += step
        for c in np.flatnonzero(~frozen):
            full = [usage[c, k] > 0 and usage[:, k] @ rate >= capacity[k] * (1 - 1e-9) for k in range(links)]
            frozen[c] = any(full) or rate[c] >= ceiling[c] * (1 - 1e-9)
    return rate


def fast(capacity, usage, ceiling):
    coflow, link = np.nonzero(usage)
    return max_min_rates(capacity, coflow, link, usage[coflow, link], ceiling)


@st.composite
def problems(draw):
    coflows, links = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    usage = rng.choice([0.0, 0.25, 1.0], (coflows, links), p=[0.5, 0.2, 0.3])
    usage[np.arange(coflows), rng.integers(0, links, coflows)] = 1.0
    # Few distinct capacities, so that ties between links are common.
    capacity = rng.choice([1.0, 2.0, 5.0, 7.5], links)
    ceiling = rng.choice([np.inf, np.inf, 0.5, 1.5], coflows)
    return capacity, usage, ceiling


@given(problems())
def test_rates_equal_those_of_a_naive_oracle(problem):
    np.testing.assert_allclose(fast(*problem), oracle(*problem), rtol=TOLERANCE)


@given(problems())
def test_no_link_carries_more_than_its_capacity(problem):
    capacity, usage, ceiling = problem
    rate = fast(*problem)
    assert (rate @ usage <= capacity * (1 + TOLERANCE)).all()
    assert (rate <= ceiling * (1 + TOLERANCE)).all()


@given(problems())
def test_every_coflow_has_a_bottleneck_on_which_no_other_is_faster(problem):
    capacity, usage, ceiling = problem
    rate = fast(*problem)
    full = rate @ usage >= capacity * (1 - TOLERANCE)
    for c in range(len(rate)):
        bottleneck = [
            full[k] and rate[c] >= rate[usage[:, k] > 0].max() * (1 - TOLERANCE) for k in np.flatnonzero(usage[c])
        ]
        assert any(bottleneck) or rate[c] >= ceiling[c] * (1 - TOLERANCE)


@given(problems())
def test_the_slowest_rate_is_the_largest_minimum_linear_programming_finds(problem):
    capacity, usage, ceiling = problem
    coflows = len(usage)
    # Maximise t subject to t <= x_c, usage^T x <= capacity, x <= ceiling.
    objective = np.r_[np.zeros(coflows), -1.0]
    at_least = np.c_[-np.eye(coflows), np.ones(coflows)]
    on_links = np.c_[usage.T, np.zeros(len(capacity))]
    found = linprog(
        objective,
        A_ub=np.r_[at_least, on_links],
        b_ub=np.r_[np.zeros(coflows), capacity],
        bounds=[*((0, c if np.isfinite(c) else None) for c in ceiling), (0, None)],
    )
    assert found.status == 0
    assert fast(*problem).min() == pytest.approx(-found.fun, rel=TOLERANCE)


def test_a_coflow_without_links_gets_its_ceiling():
    none = np.zeros(0, dtype=np.int64)
    rate = max_min_rates(np.ones(1), none, none, np.zeros(0), np.array([2.0, np.inf]))
    np.testing.assert_array_equal(rate, [2.0, np.inf])


def test_a_thousand_equal_links_are_filled_in_one_round(monkeypatch):
    rounds = []
    import foreshard.simulator.comms.maxmin as module

    original = module._fair_level
    monkeypatch.setattr(module, "_fair_level", lambda *args: rounds.append(1) or original(*args))
    each = np.arange(1000)
    rate = max_min_rates(np.full(1000, 3.0), each, each, np.full(1000, 0.3), np.full(1000, np.inf))
    np.testing.assert_allclose(rate, 10.0)
    assert len(rounds) == 1


def test_rounds_do_not_grow_with_disjoint_coflows_of_different_speed(monkeypatch):
    rounds = []
    import foreshard.simulator.comms.maxmin as module

    original = module._fair_level
    monkeypatch.setattr(module, "_fair_level", lambda *args: rounds.append(1) or original(*args))
    each = np.arange(500)
    rate = max_min_rates(1.0 + each, each, each, np.ones(500), np.full(500, np.inf))
    np.testing.assert_allclose(rate, 1.0 + each)
    assert len(rounds) == 1


def test_links_that_differ_by_rounding_alone_are_one_level(monkeypatch):
    # A chain: coflow i uses links i and i + 1, all as fast but for the last bits. One level, so hardly a round.
    rounds = []
    import foreshard.simulator.comms.maxmin as module

    original = module._fair_level
    monkeypatch.setattr(module, "_fair_level", lambda *args: rounds.append(1) or original(*args))
    capacity = 2.0 * (1 + 1e-13 * np.random.default_rng(5).random(501))
    coflow, link = np.repeat(np.arange(500), 2), (np.arange(500)[:, None] + [0, 1]).ravel()
    rate = max_min_rates(capacity, coflow, link, np.ones(1000), np.full(500, np.inf))
    np.testing.assert_allclose(rate, 1.0, rtol=1e-12)
    assert len(rounds) <= 2


def test_links_that_differ_by_a_ten_millionth_are_two_levels():
    # Link 0 holds coflow 0 to 1; on link 1 both would get 1 + 1e-7, so coflow 1 gets what is left: 1 + 2e-7.
    capacity = np.array([1.0, 2.0 * (1 + 1e-7)])
    rate = max_min_rates(capacity, np.array([0, 0, 1]), np.array([0, 1, 1]), np.ones(3), np.full(2, np.inf))
    assert rate[0] == pytest.approx(1.0, rel=1e-12)
    assert rate[1] - 1 == pytest.approx(2e-7, rel=1e-6)

"""Alias tables give every outcome its weight, exactly in the table and within chance in the draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.job.alias import alias_table


@given(weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(lambda w: sum(w) > 0))
def test_the_cells_of_a_table_add_up_to_the_weights(weights):
    table = alias_table(np.array(weights))
    chance = np.bincount(np.arange(len(weights)), table.own, len(weights))
    chance += np.bincount(table.other, 1 - table.own, len(weights))
    assert chance / len(weights) == pytest.approx(np.array(weights) / sum(weights), rel=1e-9, abs=1e-9)
    assert table.own.min() >= 0
    assert table.own.max() <= 1


def test_draws_follow_the_weights():
    """A chi-square of 200,000 draws over 400 unequal outcomes within 5 standard deviations of its mean."""
    weights = np.arange(1, 401) ** -1.2
    seen = np.bincount(alias_table(weights).draw(np.random.default_rng(0), 200_000), minlength=400)
    expected = 200_000 * weights / weights.sum()
    assert ((seen - expected) ** 2 / expected).sum() < 399 + 5 * np.sqrt(2 * 399)


def test_outcomes_without_weight_are_never_drawn():
    seen = alias_table(np.array([0.0, 3.0, 0.0, 1.0])).draw(np.random.default_rng(1), 50_000)
    assert set(seen.tolist()) == {1, 3}


def test_draws_do_not_depend_on_how_many_are_made_at_once():
    table = alias_table(np.arange(1.0, 100.0))
    whole = table.draw(np.random.default_rng(2), 50_000)
    rng = np.random.default_rng(2)
    assert np.array_equal(whole, np.concatenate([table.draw(rng, 20_001), table.draw(rng, 29_999)]))


def test_the_largest_uniform_number_stays_in_the_last_cell():
    """1 - 2^-53 times 2,049 cells would round up to 2,049."""

    class Largest:
        def random(self, out):
            out[:] = 1 - 2.0**-53

    assert alias_table(np.ones(2049)).draw(Largest(), 3).tolist() == [2048] * 3

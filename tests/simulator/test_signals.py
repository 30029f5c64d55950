"""Signals: unevenness over ranks, hot tables, and what replicas cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.lookups.skew import HotOwner
from foreshard.simulator.results.signals import HotTable, Imbalance, PlacementReport, SyncReport, hot_tables


def sync(plain: float, weights: float, gradients: float, **changes: object) -> SyncReport:
    choice = {"sync": "weights", "sync_interval": 1, "replicas": 2, **changes}
    return SyncReport(plain_step_s=plain, weights_step_s=weights, gradients_step_s=gradients, **choice)


def test_the_average_step_is_one_sync_step_in_every_interval() -> None:
    report = sync(10.0, 50.0, 12.0, sync_interval=4)
    assert report.step_time_s == pytest.approx((50.0 + 3 * 10.0) / 4)
    assert sync(10.0, 50.0, 12.0, sync="gradients").step_time_s == 12.0


def test_the_interval_from_which_averaging_is_cheaper() -> None:
    """40 s extra over k against 2 s every step: equal at 20, cheaper from 21 on."""
    assert sync(10.0, 50.0, 12.0).weights_cheaper_from == 21
    assert sync(10.0, 11.0, 12.0).weights_cheaper_from == 1
    assert sync(10.0, 50.0, 10.0).weights_cheaper_from is None


@given(plain=st.floats(0.001, 10), extra=st.floats(0, 10), saved=st.floats(0.001, 10))
def test_no_smaller_interval_is_cheaper(plain: float, extra: float, saved: float) -> None:
    report = sync(plain, plain + extra, plain + saved)
    start = report.weights_cheaper_from
    assert start is not None
    assert report.average_weights_s(start) < report.gradients_step_s
    assert start == 1 or report.average_weights_s(start - 1) >= report.gradients_step_s


def test_imbalance_is_largest_over_mean() -> None:
    item = Imbalance(quantity="lookups", unit="rows", max=30.0, mean=10.0, rank=2)
    assert item.factor == 3.0
    assert Imbalance(quantity="none", unit="rows", max=0.0, mean=0.0, rank=0).factor == 1.0


def test_a_hot_shard_is_named_by_table_rank_and_factor() -> None:
    """Position 1 of a group of ranks 4 to 7 is rank 5; an even shard is not hot."""
    hot = HotOwner(table="user", position=1, share=0.5, factor=2.0, excess=3.0)
    even = HotOwner(table="item", position=0, share=0.25, factor=1.0, excess=0.0)
    found = hot_tables((hot, even), np.array([4, 5, 6, 7]))
    assert found == (HotTable(table="user", rank=5, factor=2.0, share=0.5, excess=3.0),)


def test_contiguous_wins_once_synchronisation_is_rare_enough() -> None:
    """10 + 90/k against 14 + 10/k: equal at 20; interleaved is better up to 19, contiguous from 20 on."""
    report = PlacementReport(contiguous=sync(10.0, 100.0, 11.0), interleaved=sync(14.0, 24.0, 15.0))
    assert (report.better_at(1), report.changes_at) == ("interleaved", 20)
    assert report.sentence() == ("interleaved placement is better up to sync_interval = 19, contiguous from 20 on")
    same = PlacementReport(contiguous=sync(10.0, 20.0, 11.0), interleaved=sync(14.0, 24.0, 15.0))
    assert same.sentence() == "contiguous placement is better at every sync_interval"


@given(st.tuples(*[st.floats(0.1, 10)] * 4))
def test_the_change_of_placement_is_the_first_of_all_intervals(times: tuple[float, ...]) -> None:
    """A slow search over intervals up to 1,000 finds the same change."""
    a, b, c, d = times
    report = PlacementReport(contiguous=sync(a, a + b, a), interleaved=sync(c, c + d, c))
    found = next((k for k in range(2, 1001) if report.better_at(k) != report.better_at(1)), None)
    if found is not None or (report.changes_at or 0) <= 1000:
        assert report.changes_at == found

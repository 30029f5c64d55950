"""Ranks that would run different things never begin: before the first collective all say in what they differ."""

from __future__ import annotations

import pytest


def test_ranks_with_different_seeds_stop_and_name_both(ranks):
    same = {"execution.seed": 3, "steps": 4}
    order = {"terms": {"0": same, "1": {**same, "execution.seed": 7}, "2": same}}
    code, out, err = ranks.finish(ranks.torchrun(3, order))
    assert code != 0
    assert not out
    for rank in range(3):
        assert f"[rank {rank}] error: rank 1 differs from rank 0: execution.seed is 7 on rank 1, 3 on rank 0" in err
    assert not ranks.left()


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_terms_of_most_ranks_are_the_right_ones(ranks, odd):
    terms = {str(rank): {"plan.tables.t0.sharding": "row_wise" if rank != odd else "table_wise"} for rank in range(3)}
    right = 0 if odd else 1
    for process in ranks.by_hand(range(3), 3, {"terms": terms}):
        code, _, err = ranks.finish(process)
        assert code == 2
        assert (
            f'rank {odd} differs from rank {right}: plan.tables.t0.sharding is "table_wise" on rank {odd}, '
            f'"row_wise" on rank {right}'
        ) in err
    assert not ranks.left()


def test_a_key_that_a_rank_does_not_have_is_absent_there(ranks):
    terms = {"0": {"a": 1}, "1": {"a": 1, "b": 2}, "2": {"a": 1}}
    _, _, err = ranks.finish(ranks.torchrun(3, {"terms": terms}))
    assert "b is 2 on rank 1, absent on rank 0" in err


def test_ranks_that_do_not_come_are_named(ranks):
    processes = ranks.by_hand([0, 1, 3], 5, {"join_s": 5.0})
    for process in processes:
        code, _, err = ranks.finish(process)
        assert code == 2
        assert "3 of 5 ranks came within 5 s, ranks 2, 4 did not" in err
    assert not ranks.left()


def test_without_rank_0_the_others_say_where_they_looked_for_its_store(ranks):
    (process,) = ranks.by_hand([1], 2, {"join_s": 2.0})
    code, _, err = ranks.finish(process)
    assert code != 0
    assert "rank 1 does not reach the store of rank 0 at 127.0.0.1:" in err
    assert not ranks.left()

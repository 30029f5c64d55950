"""A hot row makes its owner visible, whatever function chose the owner."""

import numpy as np
import pytest

from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.job.hashing import hash_part
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, Table
from foreshard.simulator.lookups.skew import hot_owners
from foreshard.simulator.plans.placement import resolve_plan

HOT = Table(
    name="hot", num_embeddings=1000, embedding_dim=4, pooling_factor=10, access=Access(heavy_hitters=(0.5,))
)  # fmt: skip
EVEN = Table(name="even", num_embeddings=1000, embedding_dim=4)


@pytest.mark.parametrize("owner", ["range", "hash"])
def test_the_owner_of_a_row_with_half_of_all_ids_is_named_first(owner):
    plan = Plan(default=TableSharding(sharding="row_wise", owner=owner))
    first, second = hot_owners(resolve_plan(plan, (EVEN, HOT), 8, 8))
    row = Distribution.of(HOT).rows_of(np.array([0]))
    assert first.table == "hot"
    assert first.position == (int(hash_part(row, 8)[0]) if owner == "hash" else int(row[0]) // 125)
    assert first.share == pytest.approx(0.5 + 0.5 / 8, abs=0.02)
    assert first.factor == pytest.approx(8 * first.share)
    assert first.excess == pytest.approx(10 * (first.share - 1 / 8))
    assert second.table == "even"
    assert second.factor < 1.25


def test_whole_tables_have_no_hot_row_shard():
    assert hot_owners(resolve_plan(Plan(default=TableSharding(sharding="table_wise")), (HOT,), 8, 8)) == ()

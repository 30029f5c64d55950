"""A hot row makes its owner visible, whatever function chose the owner."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.job.batches import jagged_batch
from foreshard.simulator.job.hashing import hash_part
from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.scenario import ClusterChoice, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, Table, Workload
from foreshard.simulator.lookups.sampling import SampledBatches
from foreshard.simulator.lookups.skew import CountedOwners, hot_owners
from foreshard.simulator.plans.placement import resolve_plan
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction

HOT = Table(
    name="hot", num_embeddings=1000, embedding_dim=4, pooling_factor=10, access=Access(heavy_hitters=(0.5,))
)  # fmt: skip
EVEN = Table(name="even", num_embeddings=1000, embedding_dim=4)


def counted(sharded, batches, *, dedup=False):
    owners = CountedOwners(sharded, dedup=dedup)
    for batch in batches:
        owners.add(batch)
    return owners.hottest()


@pytest.mark.parametrize("owner", ["range", "hash"])
def test_the_owner_of_a_row_with_half_of_all_ids_is_named_first(owner):
    plan = Plan(default=TableSharding(sharding="row_wise", owner=owner))
    first, second = hot_owners(resolve_plan(plan, (EVEN, HOT), 8, 8), 4)
    row = Distribution.of(HOT).rows_of(np.array([0]))
    assert first.table == "hot"
    assert first.position == (int(hash_part(row, 8)[0]) if owner == "hash" else int(row[0]) // 125)
    assert first.share == pytest.approx(0.5 + 0.5 / 8, abs=0.02)
    assert first.factor == pytest.approx(8 * first.share)
    assert first.excess == pytest.approx(10 * (first.share - 1 / 8))
    assert second.table == "even"
    assert second.factor < 1.25


def test_whole_tables_have_no_hot_row_shard():
    assert hot_owners(resolve_plan(Plan(default=TableSharding(sharding="table_wise")), (HOT,), 8, 8), 4) == ()


@pytest.mark.parametrize("owner", ["range", "hash"])
@pytest.mark.parametrize("dedup", [False, True])
def test_counted_owners_are_those_of_an_id_by_id_loop_and_near_the_expected(owner, dedup):
    """The oracle walks over every id; the expectation of the same tables lies within the noise of the draw."""
    plan = Plan(default=TableSharding(sharding="row_wise", owner=owner))
    (item,) = sharded = resolve_plan(plan, (HOT,), 8, 8)
    workload = Workload(batch_size=200, tables=(HOT,))
    batches = [SampledBatches(workload, 8, 3)[rank] for rank in range(8)]
    sent = Counter()
    for batch in batches:
        ids = batch.ids("hot").tolist()
        for row in set(ids) if dedup else ids:
            part = int(hash_part(np.array([row]), 8)[0]) if owner == "hash" else row // 125
            sent[int(item.owners[0, part])] += 1
    (found,) = counted(sharded, batches, dedup=dedup)
    position, most = max(sorted(sent.items()), key=lambda pair: pair[1])
    assert (found.position, found.distinct) == (position, dedup)
    assert found.share == pytest.approx(most / sent.total())
    assert found.excess == pytest.approx((most / sent.total() - 1 / 8) * sent.total() / 1600)
    (expected,) = hot_owners(sharded, 200, dedup=dedup)
    assert expected.share == pytest.approx(found.share, abs=0.02)
    assert expected.excess == pytest.approx(found.excess, rel=0.05, abs=0.05)


def test_with_deduplication_a_row_with_half_of_all_ids_is_one_id_of_a_batch():
    (found,) = hot_owners(resolve_plan(Plan(default=TableSharding(sharding="row_wise")), (HOT,), 8, 8), 200, dedup=True)
    assert found.factor < 1.05


def test_ranks_without_ids_have_no_hot_shard():
    sharded = resolve_plan(Plan(default=TableSharding(sharding="row_wise")), (HOT,), 8, 8)
    (found,) = counted(sharded, [jagged_batch({"hot": [[], []]})])
    assert (found.factor, found.excess) == (1.0, 0.0)


def test_the_report_counts_what_is_sent():
    """Drawn with one seed, half of the ids are sent to the hot row's owner; deduplicated, no more than to others."""
    scenario = Scenario(
        cluster=ClusterChoice(preset="dgx-h100"),
        workload=Workload(batch_size=200, tables=(HOT,)),
        plan=Plan(default=TableSharding(sharding="row_wise")),
    )
    for execution, hot in ((Execution(), True), (Execution(routing="sampled"), True), (Execution(dedup=True), False),
                           (Execution(routing="sampled", dedup=True), False)):  # fmt: skip
        prediction = Prediction(replace(scenario, execution=execution))
        told = report(prediction)
        assert bool(told.hot_tables and told.hot_tables[0].factor > 2) == hot
        lookups = prediction.demand.families[0].local.lookups
        if told.hot_tables:
            assert told.hot_tables[0].share == pytest.approx(lookups[told.hot_tables[0].rank] / lookups.sum())
        assert ("distinct ids to rank" in told.to_text()) == (execution.dedup and bool(told.hot_tables))


@pytest.mark.parametrize("size", [None, 4])
def test_a_report_draws_every_batch_once(monkeypatch, size):
    drawn = Counter()
    of_rank = SampledBatches.of_rank
    monkeypatch.setattr(SampledBatches, "of_rank", lambda self, rank: drawn.update([rank]) or of_rank(self, rank))
    scenario = Scenario(
        cluster=ClusterChoice(preset="dgx-h100"),
        workload=Workload(batch_size=8, tables=(HOT,)),
        plan=Plan(default=TableSharding(sharding="row_wise")),
        layout=Layout(sharding_group_size=size),
        execution=Execution(routing="sampled"),
    )
    assert report(Prediction(scenario)).hot_tables
    assert drawn == Counter(range(8))

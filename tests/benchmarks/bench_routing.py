"""Ids per second of one core: drawing, routing, counting, deduplicating. Not part of the tests: machines differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foreshard.simulator.files.tablesets import load_tables
from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.layout import Layout, resolve_layout
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, Table, Workload
from foreshard.simulator.lookups.dedup import deduplicate
from foreshard.simulator.lookups.exact_demand import exact_demand
from foreshard.simulator.lookups.expectation import expected_demand
from foreshard.simulator.lookups.routing import route
from foreshard.simulator.lookups.sampling import SampledBatches
from foreshard.simulator.plans.placement import resolve_plan


def batch_of(tables: tuple[Table, ...]) -> JaggedBatch:
    """5.2 million int64 ids, uniform: 40 a sample of four features, the worst case for caches."""
    lengths = np.full((len(tables), 32768), 40)
    values = np.random.default_rng(0).integers(0, tables[0].num_embeddings, lengths.sum())
    return JaggedBatch(features=tuple(table.name for table in tables), lengths=lengths, values=values)


def rate(benchmark: Any, ids: int) -> None:
    benchmark.extra_info["million ids/s"] = round(ids / benchmark.stats.stats.min / 1e6, 1)


TABLES = tuple(Table(name=f"t{index}", num_embeddings=4_000_000, embedding_dim=128) for index in range(4))


@pytest.mark.parametrize("members", [8, 64, 1024])
@pytest.mark.parametrize("owner", ["range", "hash"])
def test_route(benchmark: Any, owner: str, members: int) -> None:
    """From a batch to send order and local rows; wanted: 20 million ids a second."""
    plan = Plan(default=TableSharding(sharding="row_wise", owner=owner))
    sharded, batch = resolve_plan(plan, TABLES, members, min(members, 8)), batch_of(TABLES)
    benchmark.pedantic(route, args=(batch, sharded, members), rounds=7, warmup_rounds=1)
    rate(benchmark, len(batch.values))


def test_deduplicate(benchmark: Any) -> None:
    sharded, batch = resolve_plan(Plan(), TABLES, 8, 8), batch_of(TABLES)
    benchmark.pedantic(deduplicate, args=(batch, sharded), rounds=5, warmup_rounds=1)
    rate(benchmark, len(batch.values))


def test_sample_a_batch(benchmark: Any) -> None:
    """One rank's batch of MLPerf DCNv2: 8,192 samples with 214 ids each, Zipf 1.15 over up to 40 million rows."""
    batches = SampledBatches(Workload(batch_size=8192, tables=load_tables("mlperf-dcnv2")), 64)
    ids = len(batches[0].values)
    benchmark.pedantic(batches.__getitem__, args=(1,), rounds=7, warmup_rounds=1)
    rate(benchmark, ids)


@pytest.mark.parametrize("owner", ["range", "hash"])
def test_sampled_demand_of_64_ranks(benchmark: Any, owner: str) -> None:
    """112 million ids of MLPerf DCNv2 drawn and counted; wanted: under 12 s."""
    workload = Workload(batch_size=8192, tables=load_tables("mlperf-dcnv2"))
    layout = resolve_layout(Layout(), 64)
    sharded = resolve_plan(Plan(default=TableSharding(sharding="row_wise", owner=owner)), workload.tables, 64, 8)
    batches = SampledBatches(workload, 64)
    arguments = (workload, sharded, layout, np.arange(64) // 8, batches)
    benchmark.pedantic(exact_demand, args=arguments, rounds=1)
    rate(benchmark, 64 * len(batches[0].values))


def test_expected_demand_of_4000_tables_on_1024_ranks(benchmark: Any) -> None:
    """Half of the tables table_wise, half row_wise, 10 to 100 million rows, up to 50 ids a sample."""
    rng = np.random.default_rng(0)
    tables = tuple(
        Table(name=f"t{i}", num_embeddings=int(10 ** rng.uniform(1, 8)), embedding_dim=128,
              pooling_factor=float(rng.uniform(1, 50)), access=Access(zipf=1.05))
        for i in range(4000)
    )  # fmt: skip
    named = tuple((table.name, TableSharding(sharding="table_wise")) for table in tables[::2])
    layout = resolve_layout(Layout(), 1024)
    sharded = resolve_plan(Plan(tables=named), tables, 1024, 8)
    workload = Workload(batch_size=512, tables=tables)
    benchmark.pedantic(expected_demand, args=(workload, sharded, layout, np.arange(1024) // 8), rounds=1)

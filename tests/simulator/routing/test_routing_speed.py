"""Routing keeps up: ids per second of one core, from a batch to send order and local rows."""

import os
import time

import numpy as np
import pytest

from foreshard.simulator.batches import JaggedBatch
from foreshard.simulator.placement import resolve_plan
from foreshard.simulator.routing import route
from foreshard.simulator.sharding import Plan, TableSharding
from foreshard.simulator.workload import Table


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "members"), [("range", 8), ("range", 64), ("range", 1024), ("hash", 8), ("hash", 64)]
)
def test_routing_exceeds_20_million_ids_a_second_and_core(owner, members):
    """4 features of 1.3 million int64 ids each on tables of 4 million rows; best of 7 runs in processor time."""
    if os.getloadavg()[0] > 1.5:
        pytest.skip(f"other work shares caches and memory: the load is {os.getloadavg()[0]:.1f}")
    tables = tuple(Table(name=f"t{index}", num_embeddings=4_000_000, embedding_dim=128) for index in range(4))
    plan = Plan(default=TableSharding(sharding="row_wise", owner=owner))
    sharded = resolve_plan(plan, tables, members, min(members, 8))
    lengths = np.full((4, 32768), 40)
    values = np.random.default_rng(0).integers(0, 4_000_000, lengths.sum())
    batch = JaggedBatch(features=tuple(table.name for table in tables), lengths=lengths, values=values)
    seconds = []
    for _ in range(7):
        start = time.process_time()
        route(batch, sharded, members)
        seconds.append(time.process_time() - start)
    rate = len(values) / min(seconds)
    print(f"{owner}, {members} owners: {rate / 1e6:.1f} million ids/s")
    assert rate >= 20e6

"""Random jobs for the routing tests: tables, plans, uneven batches; and the dictionary that says where a row lives."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.hashing import hash_part
from foreshard.simulator.job.sharding import Plan, ShardedTable, TableSharding
from foreshard.simulator.job.workload import Table
from foreshard.simulator.plans.placement import resolve_plan

ANYWHERE = ("table_wise", "column_wise", "row_wise")
KINDS = (*ANYWHERE, "table_column_wise", "table_row_wise", "grid_shard")


@dataclass(frozen=True)
class Job:
    """One sharding group of `members` ranks, `local` of them a node, with one batch a rank."""

    members: int
    local: int
    sharded: tuple[ShardedTable, ...]
    batches: tuple[JaggedBatch, ...]

    def family(self, kind):
        return tuple(table for table in self.sharded if table.sharding == kind)


def _sharding(draw, kind, rows, dim, members, local):
    """A random choice of everything a plan can say about one table of that kind."""
    columns = draw(st.integers(1, min(dim, 3))) if kind in ("column_wise", "table_column_wise", "grid_shard") else None
    parts = {"row_wise": members, "table_row_wise": local, "grid_shard": local}.get(kind, 1)
    owner = draw(st.sampled_from(["range", "hash"])) if parts > 1 else "range"
    splits, ranks = None, None
    if parts > 1 and owner == "range" and draw(st.booleans()):
        cuts = sorted(draw(st.lists(st.integers(0, rows), min_size=parts - 1, max_size=parts - 1)))
        splits = tuple(np.diff([0, *cuts, rows]).tolist())
    if kind == "row_wise" and draw(st.booleans()):
        ranks = tuple(draw(st.permutations(range(members))))
    if kind == "column_wise" and draw(st.booleans()):
        ranks = tuple(draw(st.integers(0, members - 1)) for _ in range(columns))
    return TableSharding(sharding=kind, ranks=ranks, owner=owner, row_splits=splits, column_shards=columns)


def _batch(rng, tables, samples):
    features = [(table, name) for table in tables for name in table.features]
    order = rng.permutation(len(features))  # a batch need not list its features in the order of the tables
    lengths = rng.integers(0, 4, size=(len(features), samples))
    values = [rng.integers(0, features[i][0].num_embeddings, lengths[k].sum()) for k, i in enumerate(order)]
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *values])
    names = tuple(features[i][1] for i in order)
    return JaggedBatch(features=names, lengths=lengths, values=ids, weights=rng.integers(-3, 4, len(ids)).astype(float))


@st.composite
def _jobs(draw, kinds=KINDS, pooling=("sum", "mean", "none")):
    least = 1 if set(kinds) & set(ANYWHERE) else 2  # kinds that need several ranks of the group on a node
    members = draw(st.sampled_from([size for size in (1, 2, 3, 4, 6, 8) if size >= least]))
    local = draw(st.sampled_from([size for size in (1, 2, 3, 4, 8) if size >= least and members % size == 0]))
    allowed = [kind for kind in kinds if local >= 2 or kind in ANYWHERE]
    tables, plan = [], []
    for index in range(draw(st.integers(1, 4))):
        rows, dim = draw(st.integers(1, 40)), draw(st.integers(1, 9))
        names = tuple(f"t{index}.f{k}" for k in range(draw(st.integers(1, 3))))
        tables.append(
            Table(name=f"t{index}", num_embeddings=rows, embedding_dim=dim, feature_names=names,
                  pooling=draw(st.sampled_from(pooling)))
        )  # fmt: skip
        plan.append((f"t{index}", _sharding(draw, draw(st.sampled_from(allowed)), rows, dim, members, local)))
    sharded = resolve_plan(Plan(tables=tuple(plan)), tuple(tables), members, local)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batches = tuple(_batch(rng, tables, int(samples)) for samples in rng.integers(0, 5, size=members))
    return Job(members=members, local=local, sharded=sharded, batches=batches)


@pytest.fixture(scope="session")
def jobs():
    """The Hypothesis strategy for jobs, with the kinds and poolings wanted."""
    return _jobs


def _home(sharded):
    """{(column part, id): (owner, local row)}: row by row from the definition of ShardedTable."""
    homes = {}
    for column in range(sharded.col_parts):
        filled = [0] * sharded.row_parts
        for row in range(sharded.table.num_embeddings):
            if sharded.owner == "hash" and sharded.row_parts > 1:
                part = int(hash_part([row], sharded.row_parts)[0])
            else:
                part = max(p for p in range(sharded.row_parts) if sharded.row_bounds[p] <= row)
            homes[column, row] = (int(sharded.owners[column, part]), filled[part])
            filled[part] += 1
    return homes


@pytest.fixture(scope="session")
def home():
    """The dictionary oracle: where each row of each column part of a table lives."""
    return _home

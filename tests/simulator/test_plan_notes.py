"""Notes on a plan name what its words do not say."""

from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Table
from foreshard.simulator.plans.placement import resolve_plan
from foreshard.simulator.plans.plan_notes import plan_notes


def notes(kind, rows, dim, **how):
    tables = tuple(Table(name=f"t{i}", num_embeddings=rows, embedding_dim=dim) for i in range(5))
    return plan_notes(resolve_plan(Plan(default=TableSharding(sharding=kind, **how)), tables, 8, 4))


def test_narrow_tables_that_stay_whole_under_column_wise_are_named():
    (note,) = notes("column_wise", 100, 255)
    assert note.startswith("5 tables (t0, t1, t2, ...) in one column slice")


def test_tables_with_empty_row_shards_are_named():
    (note,) = notes("row_wise", 3, 64)
    assert "too few rows for so many row shards" in note


def test_hashed_tables_are_named_when_a_shard_is_truly_empty():
    """8 rows on 8 hashed shards leave some empty (a chance of 8!/8^8 aside); 512 rows fill them all."""
    (note,) = notes("row_wise", 8, 64, owner="hash")
    assert note.startswith("5 tables")
    assert notes("row_wise", 512, 64, owner="hash") == ()


def test_an_ordinary_plan_has_no_notes():
    assert notes("column_wise", 100, 256) == notes("row_wise", 8, 64) == notes("table_wise", 1, 1) == ()

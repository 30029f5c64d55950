"""A resolved plan gives every row and column of every table exactly one owner, and balances what was left open."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Table
from foreshard.simulator.plans.balance import work_bytes
from foreshard.simulator.plans.placement import column_bounds, default_column_shards, resolve_plan, row_bounds
from foreshard.topologies.errors import InputError

KINDS = ["data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard"]
GROUP, LOCAL = 8, 4


def table(name="t", rows=1000, dim=128, **more):
    return Table(name=name, num_embeddings=rows, embedding_dim=dim, **more)


def resolve(how, *tables, group=GROUP, local=LOCAL):
    return resolve_plan(Plan(default=TableSharding(**how)), tables or (table(),), group, local)


def problems_of(how, one=None, group=GROUP, local=LOCAL):
    with pytest.raises(InputError) as caught:
        resolve(how, one or table(), group=group, local=local)
    return caught.value.problems


@st.composite
def tables_with_plan(draw):
    tables = []
    for number in range(draw(st.integers(1, 6))):
        rows, dim = draw(st.sampled_from([1, 3, 40, 1000, 10**6])), draw(st.sampled_from([4, 7, 64, 300, 512]))
        tables.append(table(f"t{number}", rows, dim, pooling_factor=draw(st.floats(0.1, 50))))
    named = [(one.name, draw(shardings(one))) for one in tables if draw(st.booleans())]
    default = TableSharding(sharding=draw(st.sampled_from(KINDS)))
    return Plan(default=default, tables=tuple(named)), tuple(tables)


@st.composite
def shardings(draw, one):
    kind = draw(st.sampled_from(KINDS))
    row_kind = kind in ("row_wise", "table_row_wise", "grid_shard")
    more = {"owner": draw(st.sampled_from(["range", "hash"]))} if row_kind else {}
    if row_kind and more["owner"] == "range" and draw(st.booleans()):
        parts = GROUP if kind == "row_wise" else LOCAL
        cuts = sorted(draw(st.lists(st.integers(0, one.num_embeddings), min_size=parts - 1, max_size=parts - 1)))
        more["row_splits"] = tuple(np.diff([0, *cuts, one.num_embeddings]).tolist())
    if kind in ("column_wise", "table_column_wise", "grid_shard") and draw(st.booleans()):
        more["column_shards"] = draw(st.integers(1, min(6, one.embedding_dim)))
    return TableSharding(sharding=kind, **more)


@settings(max_examples=60)
@given(case=tables_with_plan())
def test_shards_tile_every_table_and_have_owners_in_the_group(case):
    plan, tables = case
    resolved = resolve_plan(plan, tables, GROUP, LOCAL)
    assert [item.table for item in resolved] == list(tables)
    for item in resolved:
        assert item.row_bounds[[0, -1]].tolist() == [0, item.table.num_embeddings]
        assert item.col_bounds[[0, -1]].tolist() == [0, item.table.embedding_dim]
        assert np.diff(item.row_bounds).min() >= 0
        assert np.diff(item.col_bounds).min() >= 1
        assert item.owners.shape == (len(item.col_bounds) - 1, len(item.row_bounds) - 1)
        if item.sharding == "data_parallel":
            assert item.owners.tolist() == [[-1]]
        else:
            assert item.owners.min() >= 0
            assert item.owners.max() < GROUP


@settings(max_examples=60)
@given(case=tables_with_plan())
def test_node_kinds_stay_on_nodes(case):
    for item in resolve_plan(*case, GROUP, LOCAL):
        nodes = item.owners // LOCAL
        if item.sharding in ("table_row_wise", "table_column_wise"):
            assert len(np.unique(nodes)) == 1
        if item.sharding in ("table_row_wise", "grid_shard"):
            assert (item.owners % LOCAL == np.arange(LOCAL)).all()


@settings(max_examples=30)
@given(case=tables_with_plan())
def test_equal_input_gives_an_equal_plan(case):
    once, again = resolve_plan(*case, GROUP, LOCAL), resolve_plan(*case, GROUP, LOCAL)
    assert [item.owners.tolist() for item in once] == [item.owners.tolist() for item in again]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 10**7), st.sampled_from([16, 64, 128])), min_size=1, max_size=30),
    pooling=st.floats(0.5, 30),
)
def test_placement_balances_bytes_and_lookups_at_least_as_well_as_the_average_choice(sizes, pooling):
    """Sum of squared loads <= sum of squared costs + (total)^2 / ranks: each shard went where that grew least."""
    tables = [table(f"t{i}", rows, dim, pooling_factor=pooling) for i, (rows, dim) in enumerate(sizes)]
    owners = [int(item.owners[0, 0]) for item in resolve({"sharding": "table_wise"}, *tables)]
    cost = np.array([(t.nbytes, work_bytes(t, t.embedding_dim)) for t in tables], dtype=float)
    cost /= cost.sum(axis=0)
    load = np.zeros((GROUP, 2))
    np.add.at(load, owners, cost)
    assert (load**2).sum() <= (cost**2).sum() + 2 / GROUP + 1e-9


def test_equal_tables_are_spread_one_per_rank_in_order():
    owners = [item.owners.tolist() for item in resolve({"sharding": "table_wise"}, *[table(f"t{i}") for i in range(8)])]
    assert owners == [[[rank]] for rank in range(8)]


def test_placement_counts_the_load_of_tables_whose_owner_is_given():
    plan = Plan(
        default=TableSharding(sharding="table_wise"),
        tables=(("big", TableSharding(sharding="table_wise", ranks=(0,))),),
    )
    tables = (table("big", 10**6), table("a"), table("b"))
    assert [item.owners.item() for item in resolve_plan(plan, tables, 2, 2)] == [0, 1, 1]


def test_small_hot_tables_also_go_beside_a_large_cold_one():
    """By bytes alone rank 1 would get every small table and all the lookups; the two ranks share them instead."""
    tables = [table("large", 10**7, pooling_factor=1)] + [table(f"hot{i}", 10, pooling_factor=20) for i in range(8)]
    owners = [item.owners.item() for item in resolve({"sharding": "table_wise"}, *tables, group=2, local=2)]
    assert owners[0] == 0
    assert sorted(owners[1:]) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_row_blocks_follow_torchrec_with_last_ones_short_or_empty():
    assert row_bounds(10, 4).tolist() == [0, 3, 6, 9, 10]
    assert row_bounds(3, 8).tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert row_bounds(9, 4).tolist() == [0, 3, 6, 9, 9]
    assert row_bounds(12, 4).tolist() == [0, 3, 6, 9, 12]  # parts that divide the rows are all of one size
    assert row_bounds(8, 8).tolist() == list(range(9))


def test_uneven_row_splits_are_kept():
    (item,) = resolve({"sharding": "row_wise", "row_splits": (600, 0, 400), "ranks": (5, 2, 7)})
    assert item.row_bounds.tolist() == [0, 600, 600, 1000]
    assert item.owners.tolist() == [[5, 2, 7]]


@pytest.mark.parametrize(("dim", "shards"), [(4, 1), (128, 1), (255, 1), (256, 2), (300, 2), (1024, 8)])
def test_column_shards_default_to_one_for_every_128_columns(dim, shards):
    assert default_column_shards(dim) == shards


@given(dim=st.integers(1, 2000), data=st.data())
def test_column_slices_are_nearly_equal_and_aligned_where_they_can_be(dim, data):
    shards = data.draw(st.integers(1, dim))
    widths = np.diff(column_bounds(dim, shards))
    assert widths.sum() == dim
    unit = 4 if dim % 4 == 0 and dim // 4 >= shards else 1
    assert (widths % unit == 0).all()
    assert widths.max() - widths.min() <= unit


def test_grid_shard_gives_each_column_slice_a_node():
    (item,) = resolve({"sharding": "grid_shard"}, table(dim=256))
    assert item.owners.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_given_ranks_fill_columns_then_rows():
    (item,) = resolve({"sharding": "grid_shard", "ranks": (4, 5, 6, 7, 0, 1, 2, 3)}, table(dim=256))
    assert item.owners.tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]


CONTRADICTIONS = [
    ({"sharding": "table_wise", "ranks": (8,)}, r"ranks \[8\] do not exist"),
    ({"sharding": "table_wise", "ranks": (0, 1)}, "one owner but 2 ranks"),
    ({"sharding": "table_wise", "ranks": ()}, "ranks is empty"),
    ({"sharding": "data_parallel", "ranks": (0,)}, "on every rank: drop ranks"),
    ({"sharding": "table_wise", "owner": "hash"}, "no row shards"),
    ({"sharding": "column_wise", "row_splits": (1000,)}, "row_splits mean nothing"),
    ({"sharding": "row_wise", "column_shards": 2}, "no column shards"),
    ({"sharding": "column_wise", "column_shards": 129}, "more than its 128 columns"),
    ({"sharding": "column_wise", "ranks": tuple(range(8)) * 20}, "more than its 128 columns"),
    ({"sharding": "column_wise", "column_shards": 2, "ranks": (0, 1, 2)}, "3 ranks are given"),
    ({"sharding": "row_wise", "ranks": (0, 0)}, r"ranks \[0\] are named twice"),
    ({"sharding": "row_wise", "row_splits": (500, 500)}, "has 2 parts but there are 8 owners"),
    ({"sharding": "row_wise", "row_splits": (125,) * 7 + (124,)}, "sum to 999 rows"),
    ({"sharding": "row_wise", "row_splits": (-1, 1001, 0, 0, 0, 0, 0, 0)}, "negative"),
    ({"sharding": "row_wise", "owner": "hash", "row_splits": (125,) * 8}, "contradict owner"),
    ({"sharding": "table_row_wise", "ranks": (0, 1, 2)}, "needs all 4 ranks of one node"),
    ({"sharding": "table_row_wise", "ranks": (2, 3, 4, 5)}, "needs all 4 ranks of one node"),
    ({"sharding": "table_row_wise", "ranks": tuple(range(8))}, "needs all 4 ranks of one node"),
    ({"sharding": "grid_shard", "column_shards": 2, "ranks": (0, 1, 2, 3)}, "one node for each column shard"),
    ({"sharding": "table_column_wise", "ranks": (3, 4)}, "keeps a table on one node"),
]


@pytest.mark.parametrize(("how", "sentence"), CONTRADICTIONS, ids=[f"{n}" for n in range(len(CONTRADICTIONS))])
def test_each_contradiction_is_one_sentence(how, sentence):
    (problem,) = problems_of(how)
    assert re.search(sentence, problem), problem


@pytest.mark.parametrize("kind", ["table_row_wise", "table_column_wise", "grid_shard"])
def test_node_kinds_are_refused_where_a_node_holds_one_rank_of_the_group(kind):
    (problem,) = problems_of({"sharding": kind}, local=1)
    assert "at least two ranks of its sharding group on every node" in problem


def test_all_contradictions_of_a_plan_come_at_once():
    plan = Plan(
        default=TableSharding(sharding="table_wise", owner="hash"),
        tables=(
            ("user_ids", TableSharding(sharding="row_wise")),
            ("ads", TableSharding(sharding="row_wise", ranks=(1, 1, 9), row_splits=(2, 3))),
            ("ads", TableSharding(sharding="row_wise")),
        ),
    )
    with pytest.raises(InputError) as caught:
        resolve_plan(plan, (table("user_id"), table("ads")), GROUP, LOCAL)
    text = str(caught.value)
    for part in ("did you mean 'user_id'", "'ads' 2 times", "table 'user_id' (plan.default): table_wise has no row"):
        assert part in text
    assert len(caught.value.problems) == 3


def test_equal_table_names_and_no_tables_are_refused():
    assert "2 tables are named 't'" in str(_error(Plan(), (table(), table())))
    assert "no tables" in str(_error(Plan(), ()))


def _error(plan, tables):
    with pytest.raises(InputError) as caught:
        resolve_plan(plan, tables, GROUP, LOCAL)
    return caught.value

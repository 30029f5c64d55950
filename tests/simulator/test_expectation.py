"""The expected demand of a step conserves ids, vectors and rows, and equals small cases computed by hand."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.job.hashing import hash_part
from foreshard.simulator.job.layout import Layout, resolve_layout
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, Table, Workload
from foreshard.simulator.lookups.expectation import expected_demand
from foreshard.simulator.plans.placement import resolve_plan

KINDS = ["data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard"]


def demand_of(
    tables,
    plan,
    world=8,
    group=None,
    placement="contiguous",
    node=4,
    batch=16,
    optimizer="rowwise_adagrad",
    dedup=False,
):
    layout = resolve_layout(Layout(sharding_group_size=group, placement=placement), world)
    node_of = np.arange(world) // node
    sharded = resolve_plan(plan, tables, layout.group_size, layout.local_group_size(node_of))
    workload = Workload(batch_size=batch, tables=tables)
    return expected_demand(workload, sharded, layout, node_of, optimizer, dedup=dedup), sharded, layout


def table(name="t", rows=100, dim=128, **more):
    return Table(name=name, num_embeddings=rows, embedding_dim=dim, **more)


def planned(kind, **more):
    return Plan(default=TableSharding(sharding=kind, **more))


@st.composite
def cases(draw):
    world, group = draw(st.sampled_from([(4, 4), (8, 8), (8, 4), (16, 8), (8, 2), (16, 4)]))
    placement = draw(st.sampled_from(["contiguous", "interleaved"]))
    layout = resolve_layout(Layout(sharding_group_size=group, placement=placement), world)
    node_kinds = layout.local_group_size(np.arange(world) // 4) >= 2
    kinds = KINDS if node_kinds else KINDS[:4]
    tables, named = [], []
    for number in range(draw(st.integers(1, 4))):
        features = tuple(f"f{number}.{i}" for i in range(draw(st.integers(1, 3))))
        tables.append(
            table(
                f"t{number}",
                rows=draw(st.sampled_from([1, 3, 50, 3000])),
                dim=draw(st.sampled_from([4, 128, 300])),
                feature_names=features,
                pooling_factor=tuple(draw(st.floats(0.2, 6)) for _ in features),
                pooling=draw(st.sampled_from(["sum", "mean", "none"])),
                access=Access(
                    zipf=draw(st.sampled_from([0.0, 1.05])),
                    order=draw(st.sampled_from(["scattered", "by_frequency"])),
                    locality=draw(st.sampled_from([0.0, 0.3])),
                ),
            )
        )
        kind = draw(st.sampled_from(kinds))
        owner = draw(st.sampled_from(["range", "hash"])) if "row" in kind or kind == "grid_shard" else "range"
        named.append((f"t{number}", TableSharding(sharding=kind, owner=owner)))
    return tuple(tables), Plan(tables=tuple(named)), {"world": world, "group": group, "placement": placement}


def members_of(sharded, family):
    return [s for s in sharded if s.sharding == family.sharding and (s.table.pooling != "none") == family.pooled]


@given(case=cases())
def test_every_id_of_the_batch_is_looked_up_once_per_column_shard(case):
    tables, plan, where = case
    demand, sharded, layout = demand_of(tables, plan, **where)
    for family in demand.families:
        copies = sum(s.table.ids_per_sample * s.col_parts for s in members_of(sharded, family))
        sent = family.ids.traffic_of(0).to_matrix()
        assert sent.sum(axis=1) == pytest.approx(np.full(layout.group_size, 16 * copies))
        lookups = family.local.lookups.reshape(-1)
        for members in layout.sharding.members:
            assert sent.sum(axis=0) == pytest.approx(lookups[members])
    replicated = sum(s.table.ids_per_sample for s in sharded if s.sharding == "data_parallel")
    assert demand.data_parallel.lookups == pytest.approx(np.full(layout.world_size, 16 * replicated))
    assert demand.batch_ids == pytest.approx(16 * sum(t.ids_per_sample for t in tables))


@given(case=cases())
def test_deduplication_sends_no_more_ids_and_changes_neither_lengths_nor_rows_written(case):
    tables, plan, where = case
    (plain, _, _), (dedup, sharded, layout) = (
        demand_of(tables, plan, **where),
        demand_of(tables, plan, **where, dedup=True),
    )
    for before, after in zip(plain.families, dedup.families, strict=True):
        sent, ids = after.ids.traffic_of(0).to_matrix(), before.ids.traffic_of(0).to_matrix()
        assert (sent <= ids * (1 + 1e-9) + 1e-9).all()
        assert after.lengths.traffic_of(0).to_matrix() == pytest.approx(before.lengths.traffic_of(0).to_matrix())
        assert after.local.distinct_rows == pytest.approx(before.local.distinct_rows)
        assert after.local.lookups[layout.sharding.members[0]] == pytest.approx(sent.sum(axis=0))
        members = members_of(sharded, after)
        assert after.own.ids == pytest.approx(16 * sum(s.table.ids_per_sample for s in members))
        wanted = 16 * sum(s.table.vectors_per_sample * s.table.embedding_dim for s in members)
        assert after.own.outputs == pytest.approx(wanted)
        assert [collective.kind for collective in after.output] == ["all_to_all"]


@given(case=cases())
def test_every_batch_receives_each_of_its_vectors_once(case):
    tables, plan, where = case
    demand, sharded, layout = demand_of(tables, plan, **where)
    for family in demand.families:
        wanted = 16 * sum(s.table.vectors_per_sample * s.table.embedding_dim for s in members_of(sharded, family))
        received = np.zeros(layout.world_size)
        last = family.output[-1]
        for index, members in enumerate(last.groups.members):
            if last.kind == "all_to_all":
                received[members] = last.traffic_of(index).to_matrix().sum(axis=0)
            else:
                received[members] = last.nbytes_of(index) / len(members)
        assert received == pytest.approx(np.full(layout.world_size, wanted))


@given(case=cases())
def test_exchanges_cover_the_world_once_and_stay_in_the_sharding_groups(case):
    tables, plan, where = case
    demand, _, layout = demand_of(tables, plan, **where)
    for family in demand.families:
        for collective in (family.ids, family.lengths, *family.output):
            assert sorted(np.concatenate(collective.groups.members).tolist()) == list(range(layout.world_size))
            for members in collective.groups.members:
                assert len(np.unique(layout.sharding.group_of[members])) == 1


@given(case=cases())
def test_distinct_rows_lie_between_one_and_all_lookups_and_replicas_only_add(case):
    tables, plan, where = case
    demand, sharded, layout = demand_of(tables, plan, **where)
    replica = demand.replica
    assert (replica.touched_rows <= replica.union_rows * (1 + 1e-9)).all()
    assert (replica.union_rows <= replica.touched_rows * layout.replicas * (1 + 1e-9)).all()
    assert replica.touched_rows == pytest.approx(
        sum((f.local.distinct_rows for f in demand.families), np.zeros(where["world"]))
    )
    held = sum(
        s.table.num_embeddings * s.table.embedding_dim for s in sharded if s.sharding != "data_parallel"
    )  # fmt: skip
    for members in layout.sharding.members:
        assert replica.weight_elements[members].sum() == pytest.approx(held)
    assert replica.weight_bytes == pytest.approx(4 * replica.weight_elements)


@given(case=cases())
def test_local_work_is_the_same_on_every_replica_of_a_shard(case):
    tables, plan, where = case
    demand, _, layout = demand_of(tables, plan, **where)
    for family in demand.families:
        for members in layout.replica.members:
            assert len(set(family.local.lookups[members].tolist())) == 1


@settings(max_examples=40)
@given(case=cases())
def test_lookups_equal_a_dictionary_that_counts_row_by_row(case):
    """Slow oracle: the chance of every row, added up at the owner that the plan names for it."""
    tables, plan, where = case
    demand, sharded, layout = demand_of(tables, plan, **where)
    for family in demand.families:
        lookups, rows_touched = defaultdict(float), defaultdict(float)
        for item in members_of(sharded, family):
            for position, row_chance, hit in _rows_by_owner(item, layout.group_size):
                lookups[position] += layout.group_size * 16 * item.table.ids_per_sample * row_chance
                rows_touched[position] += hit
        first = layout.sharding.members[0]
        expected = [lookups[position] for position in range(layout.group_size)]
        assert family.local.lookups[first] == pytest.approx(expected, rel=0.02, abs=1e-9)
        touched = [rows_touched[position] for position in range(layout.group_size)]
        assert family.local.distinct_rows[first] == pytest.approx(touched, rel=0.02, abs=1e-6)


def _rows_by_owner(item, ranks):
    """(position, chance of the row, chance that the group's batches touch it) of every row and column slice."""
    this = Distribution.of(item.table)
    chance = np.diff(this.law.mass_before(np.arange(item.table.num_embeddings + 1)))
    row = this.rows_of(np.arange(item.table.num_embeddings))
    hashed = item.owner == "hash" and item.row_parts > 1
    part = hash_part(row, item.row_parts) if hashed else np.searchsorted(item.row_bounds, row, side="right") - 1
    features = len(item.table.features)
    draws, keep = 16 * item.table.ids_per_sample / features, 1 - item.table.access.locality
    sure = min(1.0, draws) if item.table.access.locality else draws
    missed = ((1 - chance) ** sure * (1 - keep * chance) ** (draws - sure)) ** (ranks * features)
    for owners in item.owners:
        yield from zip(owners[part].tolist(), chance.tolist(), (1 - missed).tolist(), strict=True)


# ---- computed by hand ----


def test_two_ranks_one_table_each():
    """Batch 10, two tables of dim 4 with 3 and 5 ids per sample, rank 0 owns a, rank 1 owns b."""
    tables = (table("a", dim=4, pooling_factor=3), table("b", dim=4, pooling_factor=5))
    plan = Plan(
        tables=(
            ("a", TableSharding(sharding="table_wise", ranks=(0,))),
            ("b", TableSharding(sharding="table_wise", ranks=(1,))),
        )
    )
    demand, _, _ = demand_of(tables, plan, world=2, batch=10)
    (family,) = demand.families
    assert family.ids.traffic_of(0).to_matrix() == pytest.approx(np.array([[30, 50], [30, 50]]))
    assert family.lengths.traffic_of(0).to_matrix() == pytest.approx(np.array([[10, 10], [10, 10]]))
    assert family.output[0].traffic_of(0).to_matrix() == pytest.approx(np.array([[40, 40], [40, 40]]))
    assert family.local.lookups.tolist() == pytest.approx([60, 100])
    assert family.local.lookup_bytes.tolist() == pytest.approx([60 * 128, 100 * 128])  # 16-byte rows cost 128
    assert family.local.outputs.tolist() == pytest.approx([80, 80])
    assert family.local.tables.tolist() == [1, 1]


def test_one_hot_row_sends_every_id_to_its_owner():
    tables = (table("hot", rows=8, dim=4, access=Access(heavy_hitters=(1.0,), order="by_frequency")),)
    demand, _, _ = demand_of(tables, planned("row_wise"), world=4, batch=10)
    (family,) = demand.families
    assert family.ids.traffic_of(0).to_matrix() == pytest.approx(np.array([[10, 0, 0, 0]] * 4))
    assert family.lengths.traffic_of(0).to_matrix() == pytest.approx(np.full((4, 4), 10))
    assert family.local.lookups.tolist() == pytest.approx([40, 0, 0, 0])
    assert family.local.distinct_rows.tolist() == pytest.approx([1, 0, 0, 0])
    assert [c.kind for c in family.output] == ["reduce_scatter"]
    assert family.output[0].nbytes_of(0) == 4 * 10 * 4
    assert family.imbalance == pytest.approx(4.0)


def test_a_two_by_two_layout_keeps_lookups_in_groups_and_syncs_across():
    """World of 4, groups {0, 1} and {2, 3}: position 0 owns row 0, position 1 row 1; each is touched for sure."""
    tables = (table("t", rows=2, dim=4, pooling_factor=100),)
    demand, _, layout = demand_of(tables, planned("row_wise"), world=4, group=2, batch=10)
    (family,) = demand.families
    assert [members.tolist() for members in family.ids.groups.members] == [[0, 1], [2, 3]]
    assert [members.tolist() for members in demand.replica.groups.members] == [[0, 2], [1, 3]]
    assert family.ids.traffic_of(0).to_matrix() == pytest.approx(np.full((2, 2), 500))
    assert demand.replica.touched_rows.tolist() == pytest.approx([1, 1, 1, 1])
    assert demand.replica.union_elements.tolist() == pytest.approx([4, 4, 4, 4])
    assert demand.replica.weight_bytes.tolist() == [16, 16, 16, 16]
    assert demand.replica.state_elements.tolist() == [1, 1, 1, 1]
    assert layout.replicas == 2


def test_table_row_wise_reduces_inside_the_node_then_crosses_between_equal_places():
    """World of 4 on 2 nodes of 2, batch 10, one table of dim 4 on node 1 with two features."""
    tables = (table("t", rows=10, dim=4, feature_names=("x", "y")),)
    demand, _, _ = demand_of(tables, planned("table_row_wise", ranks=(2, 3)), world=4, node=2, batch=10)
    (family,) = demand.families
    inside, across = family.output
    assert inside.kind == "reduce_scatter"
    assert [members.tolist() for members in inside.groups.members] == [[0, 1], [2, 3]]
    assert [inside.nbytes_of(0), inside.nbytes_of(1)] == [0, 4 * 10 * 2 * 4]
    assert across.kind == "all_to_all"
    assert [members.tolist() for members in across.groups.members] == [[0, 2], [1, 3]]
    assert across.traffic_of(0).to_matrix() == pytest.approx(np.array([[0, 0], [80, 80]]))
    assert family.lengths.traffic_of(0).to_matrix() == pytest.approx(np.array([[0, 0, 20, 20]] * 4))


def test_table_row_wise_on_one_node_needs_no_exchange_across():
    demand, _, _ = demand_of((table(),), planned("table_row_wise"), world=4)
    assert [c.kind for c in demand.families[0].output] == ["reduce_scatter"]


def test_column_slices_each_get_all_ids_and_return_their_columns():
    demand, _, _ = demand_of((table(dim=256, pooling_factor=2),), planned("column_wise"), world=2, batch=10)
    (family,) = demand.families
    assert family.ids.traffic_of(0).to_matrix() == pytest.approx(np.full((2, 2), 20))
    assert family.output[0].traffic_of(0).to_matrix() == pytest.approx(np.full((2, 2), 1280))
    assert family.local.distinct_elements == pytest.approx(128 * family.local.distinct_rows)


def test_a_sequence_table_returns_one_vector_for_every_id():
    demand, _, _ = demand_of((table(dim=4, pooling="none", pooling_factor=7),), planned("row_wise"), world=2, batch=10)
    (family,) = demand.families
    assert not family.pooled
    assert [c.kind for c in family.output] == ["all_to_all"]
    assert family.output[0].traffic_of(0).to_matrix().sum() == pytest.approx(2 * 10 * 7 * 4)


def test_a_batch_of_one_hot_row_asks_for_it_once():
    """10 samples with 3 ids each, all row 0: one id and one vector of 4 elements a rank, pooled where the batch is."""
    tables = (table("hot", rows=8, dim=4, pooling_factor=3, access=Access(heavy_hitters=(1.0,), order="by_frequency")),)
    demand, _, _ = demand_of(tables, planned("row_wise"), world=4, batch=10, dedup=True)
    (family,) = demand.families
    assert family.ids.traffic_of(0).to_matrix() == pytest.approx(np.array([[1, 0, 0, 0]] * 4))
    assert family.lengths.traffic_of(0).to_matrix() == pytest.approx(np.full((4, 4), 10))
    assert family.output[0].traffic_of(0).to_matrix() == pytest.approx(np.array([[4] * 4, [0] * 4, [0] * 4, [0] * 4]))
    assert family.local.lookups.tolist() == pytest.approx([4, 0, 0, 0])
    assert (family.own.ids[0], family.own.gathered[0], family.own.outputs[0]) == (30, 120, 40)


def test_a_feature_that_comes_once_in_four_samples_sends_a_quarter_of_the_lengths_and_vectors():
    demand, _, _ = demand_of(
        (table(dim=4, pooling_factor=6, num_poolings=0.25),), planned("table_wise", ranks=(0,)), world=2, batch=8
    )
    (family,) = demand.families
    assert family.ids.traffic_of(0).to_matrix() == pytest.approx(np.array([[12, 0], [12, 0]]))
    assert family.lengths.traffic_of(0).to_matrix() == pytest.approx(np.array([[2, 0], [2, 0]]))
    assert family.output[0].traffic_of(0).to_matrix() == pytest.approx(np.array([[8, 8], [0, 0]]))


def test_empty_row_shards_are_neither_read_nor_written_but_still_told_lengths():
    demand, _, _ = demand_of((table(rows=3, dim=4),), planned("row_wise"), world=8, batch=10)
    local = demand.families[0].local
    for count in (local.lookups, local.lookup_bytes, local.outputs, local.distinct_rows, local.tables):
        assert (count[:3] > 0).all()
        assert (count[3:] == 0).all()
    assert demand.families[0].lengths.traffic_of(0).to_matrix() == pytest.approx(np.full((8, 8), 10))


@settings(max_examples=40)
@given(
    rows=st.integers(1, 700),
    world=st.sampled_from([2, 4, 8, 16]),
    kind=st.sampled_from(["row_wise", "table_row_wise", "grid_shard"]),
    pooling=st.sampled_from(["sum", "none"]),
)
def test_hashed_shards_count_as_empty_exactly_where_no_row_hashes_to(rows, world, kind, pooling):
    """Shards looked up, vectors returned and weights held follow the rows that the hash really puts in a part."""
    node = min(world, 4)
    plan = planned(kind, owner="hash")
    demand, (item,), _ = demand_of((table(rows=rows, dim=4, pooling=pooling),), plan, world=world, node=node)
    filled = np.bincount([int(hash_part([row], item.row_parts)[0]) for row in range(rows)], minlength=item.row_parts)
    held = np.zeros(world)
    held[item.owners[0]] = filled
    if rows > 64 * item.row_parts:
        held[item.owners[0]] = rows / item.row_parts  # counted as equal shares: within 6 / sqrt(64) of the true ones
    local = demand.families[0].local
    assert local.tables.tolist() == (held > 0).astype(float).tolist()
    assert (local.outputs > 0).tolist() == (held > 0).tolist()
    assert np.abs(demand.replica.weight_elements - 4 * held).max() <= (4 if rows > 64 * item.row_parts else 0)


@pytest.mark.parametrize(("optimizer", "elements"), [("sgd", 0), ("rowwise_adagrad", 1), ("adagrad", 4), ("adam", 8)])
def test_optimizer_state_per_row_of_four_columns(optimizer, elements):
    demand, _, _ = demand_of((table(rows=10, dim=4),), planned("table_wise"), world=1, node=1, optimizer=optimizer)
    assert demand.replica.state_elements.sum() == 10 * elements


def test_data_parallel_tables_are_looked_up_where_the_batch_is():
    demand, _, _ = demand_of((table(rows=10, dim=4, pooling_factor=3),), planned("data_parallel"), world=4)
    assert demand.families == ()
    assert demand.data_parallel.lookups.tolist() == [48] * 4
    assert demand.data_parallel.distinct_rows == pytest.approx(np.full(4, 10 * (1 - 0.9**48)))
    assert demand.data_parallel_elements == 40
    assert demand.replica.weight_bytes.tolist() == [0] * 4


def test_families_come_in_the_order_of_their_kinds_pooled_before_sequence():
    tables = (table("a", pooling="none"), table("b"), table("c"))
    plan = Plan(tables=(("c", TableSharding(sharding="table_wise")),))
    demand, _, _ = demand_of(tables, plan)
    assert [(f.sharding, f.pooled) for f in demand.families] == [
        ("table_wise", True), ("row_wise", True), ("row_wise", False),
    ]  # fmt: skip


def test_expected_ids_and_rows_equal_the_mean_of_sampled_batches():
    """8 ranks, Zipf 1.05 on 3 tables, 40 sampled steps: each owner's mean within 5 standard errors."""
    tables = tuple(table(f"t{i}", rows, access=Access(zipf=1.05)) for i, rows in enumerate((40, 900, 2000)))
    demand, _, _ = demand_of(tables, planned("row_wise", owner="hash"), world=8, batch=64)
    rng, ids, rows = np.random.default_rng(5), [], []
    for _ in range(40):
        drawn = [np.concatenate([Distribution.of(t).sample(rng, 64) for _ in range(8)]) for t in tables]
        ids.append(sum(np.bincount(hash_part(one, 8), minlength=8) for one in drawn))
        rows.append(sum(np.bincount(hash_part(np.unique(one), 8), minlength=8) for one in drawn))
    for seen, expected in ((ids, demand.families[0].local.lookups), (rows, demand.families[0].local.distinct_rows)):
        error = np.std(seen, axis=0, ddof=1) / np.sqrt(len(seen))
        assert (np.abs(np.mean(seen, axis=0) - expected) < 5 * error).all()


def test_replicas_touch_the_rows_of_all_their_batches_together():
    """Uniform over 100 rows, 16 ids a rank: two groups of 4 ranks touch 100 (1 - 0.99^128) rows together, not apart."""
    demand, _, _ = demand_of((table(rows=100, dim=8),), planned("row_wise"), world=8, group=4)
    rows = demand.replica.union_rows.reshape(2, 4).sum(axis=1)
    assert rows == pytest.approx(100 * (1 - 0.99**128), rel=1e-9)
    assert demand.replica.touched_rows.reshape(2, 4).sum(axis=1) == pytest.approx(100 * (1 - 0.99**64), rel=1e-9)

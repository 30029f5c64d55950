"""Every id reaches the owner of its row and column part, in TorchRec's order, and finds its way back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.job.batches import JaggedBatch, jagged_batch
from foreshard.simulator.job.permute import bucketise, inverse, owner_dtype, segment_order
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import Table
from foreshard.simulator.lookups.routing import (
    count_requests,
    lanes_of,
    lengths_sent,
    requests_by_owner,
    restore_order,
    route,
    slots_of,
    values_sent,
)
from foreshard.simulator.plans.rows import global_rows, local_rows, part_finder, part_rows
from foreshard.topologies.errors import InputError


def samples_of(batch, feature):
    """The ids of a feature as a list of lists."""
    lengths = batch.lengths[batch.features.index(feature)]
    return [part.tolist() for part in np.split(batch.ids(feature), np.cumsum(lengths)[:-1])] if len(lengths) else []


def expected_messages(batch, sharded, home, members):
    """What each owner should be sent, by loops over dictionaries: [(slot, sample, id, local row), ...]."""
    messages = {owner: [] for owner in range(members)}
    slots = [(t, c, f) for t in sharded for c in range(t.col_parts) for f in t.table.features]
    homes = {t.table.name: home(t) for t in sharded}
    for slot, (table, column, feature) in enumerate(slots):
        for sample, ids in enumerate(samples_of(batch, feature)):
            for value in ids:
                owner, row = homes[table.table.name][column, value]
                messages[owner].append((slot, sample, value, row))
    return messages


@given(data=st.data())
def test_every_id_reaches_exactly_the_owner_of_its_row_and_column_part_in_order(jobs, home, data):
    """Owner by owner, then slot, sample and position; with the row at which the owner's shard holds it."""
    job = data.draw(jobs())
    for batch in job.batches:
        one = route(batch, job.sharded, job.members)
        messages = expected_messages(batch, job.sharded, home, job.members)
        flat = [message for owner in range(job.members) for message in messages[owner]]
        assert one.requests_by_owner.tolist() == [len(messages[owner]) for owner in range(job.members)]
        assert one.rows.tolist() == [row for _, _, _, row in flat]
        assert batch.values[values_sent(one)].tolist() == [value for _, _, value, _ in flat]
        assert (np.searchsorted(one.slot_starts, one.send, side="right") - 1).tolist() == [slot for slot, *_ in flat]


@given(data=st.data())
def test_owners_get_a_length_for_every_sample_of_every_slot_they_hold(jobs, home, data):
    """Also zeros, also from row parts without rows: TorchRec's layout of lengths, checked by counting."""
    job = data.draw(jobs())
    for batch in job.batches:
        one = route(batch, job.sharded, job.members)
        messages = expected_messages(batch, job.sharded, home, job.members)
        slots = list(enumerate(slots_of(job.sharded)))
        held = [[(o, n) for n, slot in slots if o in slot.table.owners[slot.column]] for o in range(job.members)]
        lanes = [lane for one_owner in held for lane in one_owner]
        wanted = [
            [sum(m[:2] == (slot, sample) for m in messages[owner]) for sample in range(batch.samples)]
            for owner, slot in lanes
        ]
        assert list(zip(*map(list, lanes_of(one.slots, job.members)), strict=True)) == lanes
        assert lengths_sent(one, batch).tolist() == wanted


@given(data=st.data())
def test_replies_come_back_in_the_order_of_the_requests(jobs, data):
    job = data.draw(jobs())
    one = route(job.batches[0], job.sharded, job.members)
    requests = np.arange(len(one.send))
    assert np.array_equal(np.sort(one.send), requests)
    assert np.array_equal(requests[one.send][restore_order(one)], requests)


@given(data=st.data())
def test_counting_without_a_permutation_gives_the_same_counts(jobs, data):
    job = data.draw(jobs())
    routes = [route(batch, job.sharded, job.members) for batch in job.batches]
    for one, batch in zip(routes, job.batches, strict=True):
        assert np.array_equal(count_requests(batch, job.sharded, job.members), one.counts)
    matrix = requests_by_owner(routes)
    assert matrix.shape == (job.members, job.members)
    columns = {f: t.col_parts for t in job.sharded for f in t.table.features}
    sent = [sum(len(batch.ids(f)) * n for f, n in columns.items()) for batch in job.batches]
    assert matrix.sum(axis=1).tolist() == sent


@given(data=st.data())
def test_each_row_of_each_column_part_has_exactly_one_owner(jobs, home, data):
    """The row parts of a table partition its rows, and the local rows of a part are 0, 1, 2, ..."""
    for table in data.draw(jobs()).sharded:
        parts = [global_rows(table, part) for part in range(table.row_parts)]
        assert sorted(np.concatenate(parts).tolist()) == list(range(table.table.num_embeddings))
        assert part_rows(table).tolist() == [len(rows) for rows in parts]
        for part, rows in enumerate(parts):
            assert (part_finder(table)(rows) == part).all()
            assert local_rows(table, rows, np.full(len(rows), part)).tolist() == list(range(len(rows)))


@given(
    rows=st.integers(1, 10**7),
    cuts=st.lists(st.floats(0, 1), min_size=1, max_size=70),
    seed=st.integers(0, 2**32 - 1),
)
def test_uneven_ranges_are_found_as_a_binary_search_finds_them(rows, cuts, seed):
    """Crowded, empty and far apart bounds; ids at the bounds themselves."""
    bounds = np.array([0, *sorted(int(cut * rows) for cut in cuts), rows])
    table = ShardedTable(
        table=Table(name="t", num_embeddings=rows, embedding_dim=4), sharding="row_wise", owner="range",
        owners=np.arange(len(bounds) - 1)[None], row_bounds=bounds, col_bounds=np.array([0, 4]),
    )  # fmt: skip
    ids = np.concatenate((bounds[:-1], np.maximum(bounds - 1, 0), np.random.default_rng(seed).integers(0, rows, 99)))
    ids = ids[ids < rows]
    assert np.array_equal(part_finder(table)(ids), np.searchsorted(bounds, ids, side="right") - 1)


@pytest.mark.parametrize("members", [2, 256, 257, 70_000])
def test_bucketising_across_blocks_is_a_stable_sort(members):
    """200,000 requests span several blocks; owners' types of 8, 16 and 32 bits."""
    rng = np.random.default_rng(members)
    owners = rng.integers(0, members, 200_000).astype(owner_dtype(members))
    rows = rng.integers(0, 10**9, len(owners))
    send, sent = bucketise(owners, rows, members)
    assert np.array_equal(send, np.argsort(owners, kind="stable"))
    assert np.array_equal(sent, rows[send])
    assert np.array_equal(send[inverse(send)], np.arange(len(send)))


@given(lengths=st.lists(st.integers(0, 5), max_size=12), data=st.data())
def test_moving_segments_keeps_each_whole(lengths, data):
    order = data.draw(st.permutations(range(len(lengths))))
    segments = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]) if lengths else []
    wanted = [value for index in order for value in segments[index].tolist()]
    assert segment_order(np.array(lengths, dtype=np.int64), np.array(order, dtype=np.int64)).tolist() == wanted


def two_tables():
    tables = [
        Table(name="user", num_embeddings=10, embedding_dim=4),
        Table(name="pin", num_embeddings=5, embedding_dim=4),
    ]
    return [
        ShardedTable(table=table, sharding="table_wise", owner="range", owners=np.array([[0]]),
                     row_bounds=np.array([0, table.num_embeddings]), col_bounds=np.array([0, 4]))
        for table in tables
    ]  # fmt: skip


def test_ids_outside_their_table_and_missing_features_are_all_named_at_once():
    batch = jagged_batch({"user": [[3, 10], [-1]]})
    with pytest.raises(InputError) as caught:
        route(batch, two_tables(), 2)
    assert len(caught.value.problems) == 2
    assert "2 ids lie outside table 'user' (first: 10), expected 0 to 9" in str(caught.value)
    assert "feature 'pin' of table 'pin' is missing" in str(caught.value)


def test_equal_ids_of_different_tables_never_meet():
    """Id 3 of 'user' and id 3 of 'pin' are different rows, told apart by their lanes."""
    one = route(jagged_batch({"pin": [[3]], "user": [[3]]}), two_tables(), 2)
    assert [slot.feature for slot in one.slots] == ["user", "pin"]
    assert one.counts.tolist() == [[1, 1], [0, 0]]
    assert values_sent(one).tolist() == [1, 0]


def test_an_empty_batch_is_routed():
    batch = JaggedBatch(features=("user", "pin"), lengths=np.zeros((2, 0), np.int64), values=np.zeros(0, np.int64))
    one = route(batch, two_tables(), 3)
    assert one.requests_by_owner.tolist() == [0, 0, 0]
    assert lengths_sent(one, batch).shape == (2, 0)

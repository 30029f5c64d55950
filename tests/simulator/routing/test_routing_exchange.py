"""A whole look-up and its backward, executed rank by rank in one process, equal the single-device result.

The ranks below do what a real run does: send lengths and rows, look up on the owners, return, join; only the wire is a
Python list. Tables hold integers, so float64 sums are exact in any order and results must agree bit for bit.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foreshard.simulator.job.permute import segment_order, starts_of
from foreshard.simulator.lookups.dedup import deduplicate
from foreshard.simulator.lookups.pooling import (
    divide_by_lengths,
    join_columns,
    lane_spans,
    pool,
    reduce_scatter,
    restore_sequence,
    split_columns,
    spread,
    sum_lanes,
    sum_rows,
)
from foreshard.simulator.lookups.routing import lanes_of, lengths_sent, route, slots_of, values_sent
from foreshard.simulator.plans.rows import global_rows


def integer_weights(sharded, seed=0):
    rng = np.random.default_rng(seed)
    return {
        t.table.name: rng.integers(-99, 100, (t.table.num_embeddings, t.table.embedding_dim)).astype(float)
        for t in sharded
    }


def shards_of(sharded, weights):
    """{(table, column part, owner): the owner's shard [rows of its part, width]}."""
    return {
        (t.table.name, column, int(owner)): weights[t.table.name][
            global_rows(t, part), t.col_bounds[column] : t.col_bounds[column + 1]
        ]
        for t in sharded
        for column, owners in enumerate(t.owners)
        for part, owner in enumerate(owners)
    }


class Exchange:
    """One family on one sharding group: after construction every owner holds the messages of every rank."""

    def __init__(self, members, sharded, batches, weighted=False):
        self.members, self.batches = members, batches
        self.slots = slots_of(sharded)
        self.lanes = lanes_of(self.slots, members)
        self.routes = [route(batch, sharded, members) for batch in batches]
        self.lengths = [lengths_sent(one, batch) for one, batch in zip(self.routes, batches, strict=True)]
        self.weights = [
            batch.weights[values_sent(one)] if weighted else None
            for one, batch in zip(self.routes, batches, strict=True)
        ]

    def rows(self, source, lane):
        """What `source` sent to the lane's owner: taken out by the lengths that arrived, not by what was sent."""
        own = np.flatnonzero(self.lanes.owner == self.lanes.owner[lane])
        sent = self.routes[source].rows
        begin = starts_of(self.routes[source].requests_by_owner)[self.lanes.owner[lane]]
        starts = begin + starts_of(self.lengths[source][own].sum(axis=1))
        at = int(np.flatnonzero(own == lane)[0])
        weights = self.weights[source]
        span = slice(starts[at], starts[at + 1])
        return sent[span], None if weights is None else weights[span]

    def shard(self, shards, lane):
        slot = self.slots[self.lanes.slot[lane]]
        return shards[slot.table.table.name, slot.column, int(self.lanes.owner[lane])]

    def partial(self, shards, source, lane):
        """The owner's pool of one rank's bags: [samples, width]."""
        rows, weights = self.rows(source, lane)
        return pool(self.shard(shards, lane)[rows], self.lengths[source][lane], weights)

    def pooled_all_to_all(self, shards, source):
        lanes = range(len(self.lanes.owner))
        replies = [self.partial(shards, source, lane) for lane in lanes]
        return join_columns(sum_lanes(replies, self.lanes, len(self.slots)), self.slots)

    def partial_of_owner(self, shards, owner, sources, slots):
        """The owner's partial pools of the batches of `sources`, one below the other, zeros for what it lacks."""
        lane_of = {
            (int(o), int(s)): lane for lane, (o, s) in enumerate(zip(self.lanes.owner, self.lanes.slot, strict=True))
        }

        def block(source, slot):
            if (owner, slot) in lane_of:
                return self.partial(shards, source, lane_of[owner, slot])
            return np.zeros((self.batches[source].samples, self.slots[slot].width))

        return np.concatenate([np.concatenate([block(s, slot) for slot in slots], axis=1) for s in sources])


def reference_pool(batch, table, feature, weights, weighted=False):
    """Bag by bag and id by id: what one device with the whole table computes."""
    out = np.zeros((batch.samples, table.embedding_dim))
    at = batch.feature_starts[batch.features.index(feature)]
    for sample, length in enumerate(batch.lengths[batch.features.index(feature)]):
        for position in range(at, at + length):
            scale = batch.weights[position] if weighted else 1.0
            out[sample] += scale * weights[table.name][batch.values[position]]
        if table.pooling == "mean" and length:
            out[sample] /= length
        at += length
    return out


def finished(batch, table, feature, sums):
    """What the batch owner makes of sums: means where the table wants them."""
    if table.pooling == "mean":
        return divide_by_lengths(sums, batch.lengths[batch.features.index(feature)])
    return sums


def assert_pools_equal(job, results, weights, weighted=False):
    for batch, result in zip(job.batches, results, strict=True):
        for t in job.sharded:
            for feature in t.table.features:
                if (t.table.name, feature) in result:
                    wanted = reference_pool(batch, t.table, feature, weights, weighted)
                    found = finished(batch, t.table, feature, result[t.table.name, feature])
                    assert np.array_equal(found, wanted)


@given(data=st.data(), weighted=st.booleans())
def test_pools_returned_by_all_to_all_equal_one_device_bit_for_bit(jobs, data, weighted):
    """All sharding kinds; column parts joined, partial pools of row parts summed; sums, means, weighted sums."""
    job = data.draw(jobs(pooling=("sum",) if weighted else ("sum", "mean")))
    weights = integer_weights(job.sharded)
    exchange = Exchange(job.members, job.sharded, job.batches, weighted)
    shards = shards_of(job.sharded, weights)
    results = [exchange.pooled_all_to_all(shards, source) for source in range(job.members)]
    assert all(len(result) == sum(len(t.table.features) for t in job.sharded) for result in results)
    assert_pools_equal(job, results, weights, weighted)


@given(data=st.data())
def test_pools_returned_by_reduce_scatter_equal_one_device_bit_for_bit(jobs, data):
    job = data.draw(jobs(kinds=("row_wise",), pooling=("sum", "mean")))
    weights = integer_weights(job.sharded)
    exchange = Exchange(job.members, job.sharded, job.batches)
    shards, ranks, slots = shards_of(job.sharded, weights), range(job.members), range(len(exchange.slots))
    partials = [exchange.partial_of_owner(shards, owner, ranks, slots) for owner in ranks]
    scattered = reduce_scatter(partials, [batch.samples for batch in job.batches])
    cuts = np.cumsum([slot.width for slot in exchange.slots])[:-1]
    results = [join_columns(np.split(one, cuts, axis=1), exchange.slots) for one in scattered]
    assert_pools_equal(job, results, weights)


@given(data=st.data())
def test_pools_reduced_in_the_node_and_sent_across_nodes_equal_one_device(jobs, data):
    """table_row_wise and grid_shard: reduce_scatter inside the owners' node, all_to_all between equal places."""
    job = data.draw(jobs(kinds=("table_row_wise", "grid_shard"), pooling=("sum",)))
    sharded = job.family("table_row_wise") + job.family("grid_shard")
    weights, nodes, local = integer_weights(sharded), job.members // job.local, job.local
    exchange = Exchange(job.members, sharded, job.batches)
    shards = shards_of(sharded, weights)
    samples = [batch.samples for batch in job.batches]
    by_place = [node * local + place for place in range(local) for node in range(nodes)]
    columns = {rank: {} for rank in range(job.members)}
    for node in range(nodes):
        slots = [
            index for index, slot in enumerate(exchange.slots) if slot.table.owners[slot.column, 0] // local == node
        ]
        if slots:
            owners = range(node * local, (node + 1) * local)
            partials = [exchange.partial_of_owner(shards, owner, by_place, slots) for owner in owners]
            widths = np.cumsum([exchange.slots[index].width for index in slots])[:-1]
            of_place = [[node_ * local + place for node_ in range(nodes)] for place in range(local)]
            pieces = reduce_scatter(partials, [sum(samples[rank] for rank in ranks) for ranks in of_place])
            for ranks, piece in zip(of_place, pieces, strict=True):  # what the place's rank now sends across nodes
                cuts = np.cumsum([samples[rank] for rank in ranks])[:-1]
                for rank, block in zip(ranks, np.split(piece, cuts), strict=True):
                    columns[rank] |= dict(zip(slots, np.split(block, widths, axis=1), strict=True))
    results = [join_columns([columns[rank][s] for s in range(len(exchange.slots))], exchange.slots) for rank in columns]
    assert_pools_equal(job, results, weights)


@given(data=st.data())
def test_sequence_vectors_return_in_the_order_of_the_ids(jobs, data):
    job = data.draw(jobs(pooling=("none",)))
    weights = integer_weights(job.sharded)
    exchange, shards = Exchange(job.members, job.sharded, job.batches), shards_of(job.sharded, weights)
    for source, (one, batch) in enumerate(zip(exchange.routes, job.batches, strict=True)):
        lanes = range(len(exchange.lanes.owner))
        replies = [exchange.shard(shards, lane)[exchange.rows(source, lane)[0]] for lane in lanes]
        vectors = join_columns(restore_sequence(one, replies), exchange.slots)
        for (table, feature), found in vectors.items():
            assert np.array_equal(found, weights[table][batch.ids(feature)])


@given(data=st.data())
def test_deduplication_changes_neither_pools_nor_sequences_and_asks_for_each_id_once(jobs, data):
    """Distinct per (rank, owner, table): pooled by the batch owner from distinct vectors, exactly as before."""
    job = data.draw(jobs())
    weights = integer_weights(job.sharded)
    shards = shards_of(job.sharded, weights)
    for batch in job.batches:
        own = deduplicate(batch, job.sharded)
        exchange = Exchange(job.members, own.tables, [own.batch])
        one = exchange.routes[0]
        replies = [exchange.shard(shards, lane)[one.rows[span]] for lane, span in enumerate(lane_spans(one))]
        distinct = join_columns(restore_sequence(one, replies), exchange.slots)
        for t, inverse in zip(job.sharded, own.inverse, strict=True):
            every = distinct[t.table.name, t.table.name][inverse]
            ids = np.concatenate([batch.ids(feature) for feature in t.table.features])
            assert np.array_equal(every, weights[t.table.name][ids])
            assert len(own.batch.ids(t.table.name)) == len(set(ids.tolist()))
            sizes = [len(batch.ids(feature)) for feature in t.table.features]
            for feature, vectors in zip(t.table.features, np.split(every, np.cumsum(sizes)[:-1]), strict=True):
                if t.table.pooling != "none":
                    sums = pool(vectors, batch.lengths[batch.features.index(feature)])
                    wanted = reference_pool(batch, t.table, feature, weights)
                    assert np.array_equal(finished(batch, t.table, feature, sums), wanted)


@given(data=st.data(), weighted=st.booleans())
def test_gradients_that_arrive_at_the_owners_equal_those_of_one_device(jobs, data, weighted):
    """Each owner sums what all ranks send for each of its rows; rows nobody looked up get nothing."""
    job = data.draw(jobs(pooling=("sum",) if weighted else ("sum", "none")))
    exchange = Exchange(job.members, job.sharded, job.batches, weighted)
    rng = np.random.default_rng(1)
    wanted = {t.table.name: np.zeros((t.table.num_embeddings, t.table.embedding_dim)) for t in job.sharded}
    found = shards_of(job.sharded, wanted)
    for source, batch in enumerate(job.batches):
        gradients = {}
        for t in job.sharded:
            for feature in t.table.features:
                lengths, ids = batch.lengths[batch.features.index(feature)], batch.ids(feature)
                bags = len(ids) if t.table.pooling == "none" else batch.samples
                gradient = rng.integers(-9, 10, (bags, t.table.embedding_dim)).astype(float)
                gradients[t.table.name, feature] = gradient
                at = batch.feature_starts[batch.features.index(feature)]
                bag_of = np.arange(bags) if t.table.pooling == "none" else np.repeat(np.arange(bags), lengths)
                for position, value in enumerate(ids):
                    scale = batch.weights[at + position] if weighted else 1.0
                    wanted[t.table.name][value] += scale * gradient[bag_of[position]]
        per_slot = split_columns(gradients, exchange.slots)
        spans = lane_spans(exchange.routes[source])
        for lane, index in enumerate(exchange.lanes.slot):
            rows, weights = exchange.rows(source, lane)
            if exchange.slots[index].table.table.pooling == "none":
                positions = exchange.routes[source].send[spans[lane]] - exchange.routes[source].slot_starts[index]
                arrived = per_slot[index][positions]
            else:
                arrived = spread(per_slot[index], exchange.lengths[source][lane], weights)
            distinct, sums = sum_rows(rows, arrived)
            exchange.shard(found, lane)[distinct] += sums
    for key, shard in shards_of(job.sharded, wanted).items():
        assert np.array_equal(found[key], shard)


@given(data=st.data())
def test_gradients_of_distinct_vectors_equal_those_of_one_device(jobs, data):
    """Deduplicated, the batch owner first sums the gradients of equal ids; row owners get the same sums bit for bit."""
    job = data.draw(jobs(pooling=("sum", "none")))
    rng = np.random.default_rng(2)
    wanted = {t.table.name: np.zeros((t.table.num_embeddings, t.table.embedding_dim)) for t in job.sharded}
    found = shards_of(job.sharded, wanted)
    for batch in job.batches:
        own = deduplicate(batch, job.sharded)
        exchange = Exchange(job.members, own.tables, [own.batch])
        one, gradients = exchange.routes[0], {}
        for t, inverse in zip(job.sharded, own.inverse, strict=True):
            per_id = []
            for feature in t.table.features:
                lengths, ids = batch.lengths[batch.features.index(feature)], batch.ids(feature)
                bags = len(ids) if t.table.pooling == "none" else batch.samples
                gradient = rng.integers(-9, 10, (bags, t.table.embedding_dim)).astype(float)
                per_id.append(gradient if t.table.pooling == "none" else spread(gradient, lengths))
                np.add.at(wanted[t.table.name], ids, per_id[-1])
            _, sums = sum_rows(inverse, np.concatenate(per_id))
            gradients[t.table.name, t.table.name] = sums
        per_slot = split_columns(gradients, exchange.slots)
        for lane, (index, span) in enumerate(zip(exchange.lanes.slot, lane_spans(one), strict=True)):
            exchange.shard(found, lane)[one.rows[span]] += per_slot[index][one.send[span] - one.slot_starts[index]]
    for key, shard in shards_of(job.sharded, wanted).items():
        assert np.array_equal(found[key], shard)


@given(data=st.data())
def test_rows_an_owner_received_lie_slot_by_slot_after_one_segment_move(jobs, data):
    """The recat of `input_dist`: (rank, slot) segments become (slot, rank) segments, ready for one kernel a table."""
    job = data.draw(jobs())
    exchange = Exchange(job.members, job.sharded, job.batches)
    for owner in range(job.members):
        lanes = np.flatnonzero(exchange.lanes.owner == owner)
        received = [[exchange.rows(source, lane)[0] for lane in lanes] for source in range(job.members)]
        sizes = np.array([[len(rows) for rows in one] for one in received], dtype=np.int64)
        sizes = sizes.reshape(job.members, len(lanes))
        order = np.arange(sizes.size).reshape(sizes.shape).T.ravel()
        flat = np.concatenate([np.zeros(0, np.int64), *(rows for one in received for rows in one)])
        moved = flat[segment_order(sizes.ravel(), order)]
        wanted = [row for lane in range(len(lanes)) for one in received for row in one[lane].tolist()]
        assert moved.tolist() == wanted


def test_float32_pools_agree_within_rounding():
    """100 ids a bag over 4 row owners: relative error of float32 sums below 1e-5 of the sum of magnitudes."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(800, 16)).astype(np.float32)
    parts = rng.integers(0, 4, 800)
    bag = np.repeat(np.arange(8), 100)
    partials = [pool(vectors[parts == p], np.bincount(bag[parts == p], minlength=8)) for p in range(4)]
    summed = reduce_scatter(partials, [8])[0]
    assert summed.dtype == np.float32
    exact = vectors.astype(np.float64).reshape(8, 100, 16)
    assert np.all(np.abs(summed - exact.sum(axis=1)) <= 1e-5 * np.abs(exact).sum(axis=1))

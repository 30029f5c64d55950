"""Routing, deduplication and jagged permutations of every implementation against the simulator and the reference."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foreshard.kernels import FeatureRoute
from foreshard.kernels import reference as ref
from foreshard.simulator.job import hashing, permute

from .cases import got, put

IDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60)


@given(ids=IDS, parts=st.integers(1, 2000))
def test_hashed_ids_have_the_simulators_owner_and_keep_their_id(ops, ids, parts):
    ids = np.array(ids, dtype=np.int64)
    members = np.arange(parts)[::-1].copy()
    route = FeatureRoute(members=members.tolist())
    owners, rows = ops.find_owners([route], put(ops, ids), put(ops, np.array([0, len(ids)])))
    assert np.array_equal(got(owners), members[hashing.hash_part(ids, parts)])
    assert got(owners).dtype == np.int32
    assert np.array_equal(got(rows), ids)


@given(data=st.data())
def test_ranges_some_of_them_empty_own_their_ids_feature_by_feature(ops, data):
    routes, ids, owners, rows = [], [], [], []
    for _ in range(data.draw(st.integers(1, 3))):
        sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any))
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        members = data.draw(st.permutations(range(len(sizes))))
        own = np.array(data.draw(st.lists(st.integers(0, int(bounds[-1]) - 1), max_size=9)), dtype=np.int64)
        part = np.repeat(np.arange(len(sizes)), sizes)[own]
        routes.append(FeatureRoute(members=members, bounds=bounds.tolist()))
        ids.append(own)
        owners.append(np.array(members)[part])
        rows.append(own - bounds[part])
    starts = np.concatenate([[0], np.cumsum([len(own) for own in ids])])
    found = ops.find_owners(routes, put(ops, np.concatenate(ids)), put(ops, starts))
    assert np.array_equal(got(found[0]), np.concatenate(owners))
    assert np.array_equal(got(found[1]), np.concatenate(rows))


@given(owners=st.lists(st.integers(0, 6), max_size=200))
def test_ids_leave_in_the_order_in_which_the_simulator_sends_them(ops, owners):
    owners = np.array(owners, dtype=np.int32)
    done = ops.bucketise(put(ops, owners), 8)
    expected, _ = permute.bucketise(owners.astype(np.uint8), np.arange(len(owners)), 8)
    assert np.array_equal(got(done.permutation), expected)
    assert np.array_equal(got(done.inverse), permute.inverse(expected))
    assert got(done.counts).tolist() == np.bincount(owners, minlength=8).tolist()
    values = put(ops, np.arange(len(owners)) * 7)
    sent = ops.permute(values, done.permutation)
    assert np.array_equal(got(ops.permute(sent, done.inverse)), got(values))


@given(ids=st.lists(st.integers(0, 40), max_size=60), num_embeddings=st.sampled_from([41, 300, 10**6, 2**40]))
def test_distinct_ids_rise_and_the_inverse_finds_every_id(ops, ids, num_embeddings):
    ids = np.array(ids, dtype=np.int64) * (num_embeddings // 41)
    distinct, inverse = ops.deduplicate(put(ops, ids), num_embeddings=num_embeddings)
    expected = ref.deduplicate(ids)
    assert np.array_equal(got(distinct), expected[0])
    assert np.array_equal(got(inverse), expected[1])


@given(lengths=st.lists(st.integers(0, 4), max_size=12), dim=st.sampled_from([0, 1, 3]), data=st.data())
def test_whole_segments_move_as_the_simulator_moves_them(ops, lengths, dim, data):
    lengths = np.array(lengths, dtype=np.int64)
    order = np.array(data.draw(st.permutations(range(len(lengths)))), dtype=np.int64)
    values = np.arange(lengths.sum() * max(dim, 1), dtype=np.float32).reshape((-1, dim) if dim else -1)
    found = ops.permute_segments(put(ops, values), put(ops, lengths), put(ops, order))
    assert np.array_equal(got(found), values[permute.segment_order(lengths, order)])


@given(
    sources=st.integers(1, 4), features=st.integers(1, 4), samples=st.integers(0, 4), seed=st.integers(0, 10**6)
)  # fmt: skip
def test_received_ids_are_put_in_table_order(ops, sources, features, samples, seed):
    """Bag (feature, source x samples + sample) holds what this source sent for this sample of the feature."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, (sources, features, samples)).astype(np.int32)
    ids = rng.integers(0, 100, lengths.sum())
    weights = rng.normal(size=len(ids)).astype(np.float32)
    bags = ops.recat(put(ops, ids), put(ops, lengths), put(ops, weights))
    assert bags.features == features
    assert bags.batch == sources * samples
    offsets, starts = got(bags.offsets), np.concatenate([[0], np.cumsum(lengths.ravel())])
    for source in range(sources):
        for feature in range(features):
            for sample in range(samples):
                sent = (source * features + feature) * samples + sample
                bag = feature * bags.batch + source * samples + sample
                expected = slice(starts[sent], starts[sent + 1])
                assert np.array_equal(got(bags.ids)[offsets[bag] : offsets[bag + 1]], ids[expected])
                assert np.array_equal(got(bags.weights)[offsets[bag] : offsets[bag + 1]], weights[expected])

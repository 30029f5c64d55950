"""Routing kernels, run on the CPU, against the NumPy reference and the simulator's owners."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.kernels import reference as ref
from foreshard.kernels.routing import FeatureRoute, bucketise, deduplicate, find_owners
from foreshard.kernels.segments import position_bits
from foreshard.simulator.job import hashing
from foreshard.topologies.errors import InputError

SCHEDULES = st.fixed_dictionaries(
    {"seed": st.integers(0, 9), "threads": st.sampled_from([32, 64, 128]), "max_grid": st.integers(1, 4)}
)
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(ids=st.lists(INT64, min_size=1, max_size=40), parts=st.integers(1, 40), schedule=SCHEDULES)
def test_hash_owners_are_the_simulators_bit_for_bit(on_cpu, ids, parts, schedule):
    ids = np.array(ids, dtype=np.int64)
    members = np.arange(parts)[::-1]
    owners, rows = find_owners(
        [FeatureRoute(members=members.tolist())], ids, np.array([0, len(ids)]), device=on_cpu(**schedule)
    )
    assert np.array_equal(owners, members[hashing.hash_part(ids, parts)])
    assert np.array_equal(rows, ids)


@given(
    features=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=4),
    count=st.integers(0, 80),
    id_type=st.sampled_from([np.int32, np.int64]),
    schedule=SCHEDULES,
    seed=st.integers(0, 10**6),
)
def test_range_and_hash_owners_of_many_features_equal_the_reference(on_cpu, features, count, id_type, schedule, seed):
    rng = np.random.default_rng(seed)
    sizes = [[*part[:-1], part[-1] + 1] for part in features]  # parts may be empty, tables not
    routes = []
    for index, part in enumerate(sizes):
        members = rng.integers(0, 9, len(part)).tolist()
        bounds = None if index % 3 == 2 else np.cumsum([0, *part]).tolist()
        routes.append(FeatureRoute(members=members, bounds=bounds))
    starts = np.concatenate([[0], np.sort(rng.integers(0, count + 1, len(sizes) - 1)), [count]]).astype(np.int64)
    ids = np.empty(count, dtype=id_type)
    expected_owners, expected_rows = [], []
    for route, part, begin, end in zip(routes, sizes, starts, starts[1:], strict=False):
        own = rng.integers(0, sum(part), end - begin)
        own[:1], own[-1:] = sum(part) - 1, 0
        ids[begin:end] = own
        hashed = route.bounds is None
        found = ref.hash_part(own, len(part)) if hashed else ref.range_part(own, np.array(route.bounds))
        expected_owners.append(np.array(route.members)[found])
        expected_rows.append(own if hashed else own - np.array(route.bounds)[found])
    owners, rows = find_owners(routes, ids, starts, device=on_cpu(**schedule))
    assert np.array_equal(owners, np.concatenate(expected_owners))
    assert np.array_equal(rows, np.concatenate(expected_rows))


def test_checked_routing_names_every_feature_with_ids_outside_its_ranges(on_cpu):
    routes = [
        FeatureRoute(members=[0, 1], bounds=[0, 3, 7]),
        FeatureRoute(members=[0]),
        FeatureRoute(members=[1], bounds=[0, 5]),
    ]
    ids, starts = np.array([0, 6, -9, 5, 2]), np.array([0, 2, 3, 5])
    with pytest.raises(InputError, match="ids of feature 2 run from 2 to 5: expected 0 to 4") as caught:
        find_owners(routes, ids, starts, checked=True, device=on_cpu())
    assert "feature 0" not in str(caught.value)
    assert "feature 1" not in str(caught.value)  # a hash has a part for any id
    owners, rows = find_owners(routes, np.minimum(ids, 4), starts, checked=True, device=on_cpu())
    assert owners.tolist() == [0, 1, 0, 1, 1]
    assert rows.tolist() == [0, 1, -9, 4, 2]


def test_routes_may_be_arrays(on_cpu):
    route = FeatureRoute(members=np.array([5, 7]), bounds=np.array([0, 3, 9]))
    owners, rows = find_owners([route], np.array([2, 3, 8]), np.array([0, 3]), checked=True, device=on_cpu())
    assert owners.tolist() == [5, 7, 7]
    assert rows.tolist() == [2, 0, 5]


@pytest.mark.parametrize("starts", [[1, 2], [0, 1], [0, 3]])
def test_checked_routing_wants_starts_that_cover_the_ids(on_cpu, starts):
    with pytest.raises(InputError, match="expected rising from 0 to 2, the number of ids"):
        find_owners([FeatureRoute(members=[0])], np.array([4, 5]), np.array(starts), checked=True, device=on_cpu())


@given(
    count=st.sampled_from([0, 1, 31, 32, 33, 500, 2047, 2048, 2049, 5000]),
    members=st.sampled_from([1, 2, 7, 64, 1000]),
    skew=st.sampled_from([0.3, 1.0, 4.0]),
    schedule=SCHEDULES,
    seed=st.integers(0, 10**6),
)
def test_bucketise_equals_a_stable_sort(on_cpu, count, members, skew, schedule, seed):
    owners = (np.random.default_rng(seed).random(count) ** skew * members).astype(np.int32)
    got = bucketise(owners, members, device=on_cpu(**schedule))
    assert np.array_equal(got.permutation, ref.bucketise(owners))
    assert np.array_equal(got.inverse, ref.inverse_permutation(got.permutation))
    assert np.array_equal(got.counts, ref.owner_counts(owners, members))


def test_counters_of_more_members_than_shared_memory_holds_lie_in_global_memory(on_cpu):
    owners = np.random.default_rng(0).integers(0, 7000, 4100).astype(np.int32)
    got = bucketise(owners, 7000, device=on_cpu(seed=4))
    assert np.array_equal(got.permutation, ref.bucketise(owners))
    assert np.array_equal(got.inverse, ref.inverse_permutation(got.permutation))
    assert np.array_equal(got.counts, ref.owner_counts(owners, 7000))


@given(ids=st.lists(st.one_of(st.integers(0, 9), INT64), max_size=60), schedule=SCHEDULES)
def test_deduplication_equals_the_reference(on_cpu, ids, schedule):
    ids = np.array(ids, dtype=np.int64)
    distinct, inverse = deduplicate(ids, device=on_cpu(**schedule))
    expected = ref.deduplicate(ids)
    assert np.array_equal(distinct, expected[0])
    assert np.array_equal(inverse, expected[1])


@given(
    ids=st.lists(st.integers(0, 2**40 - 1) | st.integers(0, 9), max_size=60),
    limit=st.sampled_from([2**40, 2**57, 2**58, 2**63 - 1]),
)
def test_deduplication_with_a_limit_is_the_same_whether_keys_and_positions_fit_together_or_not(on_cpu, ids, limit):
    ids = np.array(ids, dtype=np.int64)
    distinct, inverse = deduplicate(ids, limit=limit, device=on_cpu())
    assert np.array_equal(distinct, np.unique(ids))
    assert np.array_equal(distinct[inverse], ids)


@pytest.mark.parametrize(("count", "limit", "bits"), [(1, 1, 1), (2, 2**62, 1), (2, 2**62 + 1, 0), (1025, 2**52, 11)])
def test_positions_share_63_bits_with_keys(count, limit, bits):
    assert position_bits(count, limit) == bits
    assert position_bits(count, None) == 0


def test_the_inverse_kernel_undoes_a_permutation(on_cpu):
    permutation = np.random.default_rng(1).permutation(777)
    inverse = np.empty_like(permutation)
    on_cpu().launch("invert", 9, (permutation, np.int64(777), inverse), threads=64)
    assert np.array_equal(inverse, ref.inverse_permutation(permutation))


def test_all_mistakes_of_routes_are_named_at_once(on_cpu):
    routes = [FeatureRoute(members=[]), FeatureRoute(members=[0, 1], bounds=[0, 5, 3])]
    with pytest.raises(InputError) as caught:
        find_owners(routes, np.zeros(2), np.zeros((2, 2), dtype=np.int64), device=on_cpu())
    text = str(caught.value)
    for part in (
        "ids has dtype float64",
        "starts has shape [2, 2]: expected [n]",
        "starts has shape [2, 2]: expected [2 features + 1]",
        "feature 0 has no owner",
        "bounds of feature 1 are [0, 5, 3]: expected 3 rising",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda device: bucketise(np.zeros(2, np.int64), 3, device=device), "owners has dtype int64: expected int32"),
        (lambda device: bucketise(np.zeros(2, np.int32), 0, device=device), "0 members"),
        (
            lambda device: bucketise(np.array([0, 3], np.int32), 3, checked=True, device=device),
            "owners run from 0 to 3: expected 0 to 2",
        ),
        (
            lambda device: deduplicate(np.array([-1, 9]), limit=10, checked=True, device=device),
            "ids run from -1 to 9: expected 0 to 9",
        ),
        (
            lambda device: find_owners([], np.zeros(2, np.int64), np.zeros(1, np.int64), device=device),
            "2 ids of no feature: expected a route",
        ),
        (
            lambda device: find_owners([FeatureRoute(members=[0, -1])], np.zeros(1, int), np.arange(2), device=device),
            "feature 0 has owner -1: expected none below 0",
        ),
        (lambda device: deduplicate(np.zeros((2, 2), np.int64), device=device), r"ids has shape \[2, 2\]"),
        (lambda device: deduplicate([1, 2], device=device), "ids is a list"),
    ],
)
def test_wrong_input_is_refused(on_cpu, call, message):
    with pytest.raises(InputError, match=message):
        call(on_cpu())

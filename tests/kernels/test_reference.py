"""The NumPy references against slower, plainer definitions, and against values worked out by hand."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.kernels import reference as ref
from foreshard.kernels.reference_codecs import CODECS
from foreshard.simulator.job.codecs import wire_bytes
from foreshard.simulator.job.hashing import hash_part
from foreshard.topologies.errors import InputError

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)


@given(st.lists(INT64, max_size=50), st.integers(1, 2**31 - 1))
def test_hash_owner_is_the_simulators_bit_for_bit(ids, parts):
    ids = np.array(ids, dtype=np.int64)
    assert np.array_equal(ref.hash_part(ids, parts), hash_part(ids, parts))


def test_mix64_of_zero_is_the_first_output_of_splitmix64_seeded_with_zero():
    assert int(ref.mix64(0)) == 0xE220A8397B1DCDAF  # first output of Vigna's splitmix64.c from seed 0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_range_part_is_the_only_part_whose_range_holds_the_id(sizes, data):
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    if bounds[-1] == 0:
        return
    row = data.draw(st.integers(0, int(bounds[-1]) - 1))
    assert bounds[part := int(ref.range_part(row, bounds))] <= row < bounds[part + 1]


@given(st.lists(st.integers(0, 5), max_size=40))
def test_bucketise_keeps_the_order_within_an_owner_and_its_inverse_undoes_it(owners):
    owners = np.array(owners, dtype=np.int32)
    order = ref.bucketise(owners)
    assert order.tolist() == [i for owner in range(6) for i in range(len(owners)) if owners[i] == owner]
    assert np.array_equal(owners[order][ref.inverse_permutation(order)], owners)
    assert ref.owner_counts(owners, 6).tolist() == [int((owners == owner).sum()) for owner in range(6)]


def test_pooling_by_hand():
    rows = np.array([[1, 2], [10, 20], [100, 200]], dtype=np.float32)
    ids, offsets = np.array([0, 2, 1, 1]), np.array([0, 2, 2, 4])
    assert ref.pooled_lookup(rows, ids, offsets).tolist() == [[101, 202], [0, 0], [20, 40]]
    assert ref.pooled_lookup(rows, ids, offsets, mode="mean").tolist() == [[50.5, 101], [0, 0], [10, 20]]
    weights = np.array([1, 0.5, 2, 3], dtype=np.float32)
    assert ref.pooled_lookup(rows, ids, offsets, weights=weights).tolist() == [[51, 102], [0, 0], [50, 100]]
    assert ref.sequence_lookup(rows, ids).tolist() == rows[ids].tolist()


def test_the_backward_is_the_transpose_of_the_pooled_look_up():
    rng = np.random.default_rng(0)
    rows, ids = rng.integers(-8, 8, (5, 3)).astype(np.float32), rng.integers(0, 5, 12)
    offsets, weights = np.array([0, 4, 4, 12]), rng.integers(-3, 4, 12).astype(np.float32)
    gradients = rng.integers(-8, 8, (3, 3)).astype(np.float32)
    per_id = ref.spread_gradients(gradients, offsets, weights=weights)
    forward = (ref.pooled_lookup(rows, ids, offsets, weights=weights) * gradients).sum()
    assert forward == (rows[ids] * per_id).sum()


@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 7))
def test_segment_sums_of_integers_are_those_of_a_dictionary_whatever_the_chunk(ids, chunk):
    ids = np.array(ids, dtype=np.int64)
    gradients = (np.arange(2 * len(ids)) % 17 - 8).astype(np.float32).reshape(-1, 2)
    segments = ref.segment(ids)
    sums = ref.sum_segments(segments, gradients, chunk=chunk)
    expected = {int(row): gradients[ids == row].sum(axis=0).tolist() for row in set(ids.tolist())}
    assert dict(zip(segments.rows.tolist(), sums.tolist(), strict=True)) == expected


def test_sgd_and_row_wise_adagrad_by_hand():
    rows, ids = np.array([[1, 1], [5, 5]], dtype=np.float32), np.array([1, 1])
    gradients = np.array([[1, 3], [2, 1]], dtype=np.float32)  # sum 3, 4: mean square 12.5
    after, momentum = ref.update_rows(rows, None, ids, gradients, ref.Sgd(learning_rate=0.5))
    assert after.tolist() == [[1, 1], [3.5, 3]]
    assert momentum is None
    state = np.array([7, 37.5], dtype=np.float32)  # v becomes 50, of which 2 replicas leave 25
    optimizer = ref.RowWiseAdagrad(learning_rate=1.0, eps=1e-12, replicas=2)
    after, momentum = ref.update_rows(rows, state, ids, gradients, optimizer)
    assert momentum.tolist() == [7, 50]
    np.testing.assert_allclose(after, [[1, 1], [5 - 3 / 5, 5 - 4 / 5]], rtol=1e-7)
    outside_the_root = ref.RowWiseAdagrad(learning_rate=1.0, eps=1.0, replicas=2)  # 1 / (sqrt(25) + 1)
    after, _ = ref.update_rows(rows, state, ids, gradients, outside_the_root)
    np.testing.assert_allclose(after, [[1, 1], [5 - 3 / 6, 5 - 4 / 6]], rtol=1e-6)


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_bf16_is_the_nearer_of_the_two_neighbours_and_even_on_a_tie(values):
    for value in np.array(values, dtype=np.float32):
        low = int(value.view(np.uint32)) >> 16
        below, above = (float(ref.fp32_from_bf16(np.uint16(bits))) for bits in (low, low + 1))
        got = int(ref.bf16_from_fp32(np.array([value]))[0])
        to_low, to_high = abs(float(value) - below), abs(above - float(value))
        assert got == (low if to_low < to_high or (to_low == to_high and low % 2 == 0) else low + 1)


def test_fp8_has_the_values_of_the_ocp_specification():
    e4m3, e5m2 = ref.fp8_values("e4m3"), ref.fp8_values("e5m2")
    assert (e4m3[0x7E], e4m3[0x01], e4m3[0x08], e4m3[0x38], e4m3[0xB8]) == (448, 2**-9, 2**-6, 1, -1)
    assert np.isnan(e4m3[0x7F])
    assert (e5m2[0x7B], e5m2[0x01], e5m2[0x04], e5m2[0x3C]) == (57344, 2**-16, 2**-14, 1)
    assert np.isinf(e5m2[0x7C])
    assert np.isnan(e5m2[0x7D])


@pytest.mark.parametrize("form", ["e4m3", "e5m2"])
def test_every_finite_fp8_code_survives_the_way_there_and_back(form):
    values = ref.fp8_values(form)
    codes = np.flatnonzero(np.isfinite(values)).astype(np.uint8)
    assert np.array_equal(ref.fp8_from_fp32(values[codes], form), codes)


def test_fp8_rounds_ties_to_even_and_clips():
    got = ref.fp8_from_fp32(np.array([1.0625, 1.1875, 1e9, -1e9, 2**-10], dtype=np.float32), "e4m3")
    assert got.tolist() == [0x38, 0x3A, 0x7E, 0xFE, 0x00]  # 1.0625 lies between 1 and 1.125, 1.1875 up to 1.25


@pytest.mark.parametrize("codec", CODECS)
@given(dim=st.integers(1, 9), count=st.integers(0, 4), seed=st.integers(0, 99))
def test_an_encoded_row_costs_what_the_simulator_prices(codec, dim, count, seed):
    rows = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    encoded = ref.encode(rows, codec)
    data_type = "fp8" if codec.startswith("fp8") else codec
    assert encoded.nbytes == pytest.approx(rows.size * wire_bytes(data_type, dim))
    assert ref.decode(encoded, codec).shape == rows.shape


def test_int8_rows_are_off_by_half_a_step_at_most_and_carry_scale_and_bias():
    rows = np.random.default_rng(1).normal(size=(20, 33)).astype(np.float32)
    encoded = ref.encode(rows, "int8")
    scale, bias = struct.unpack("<ff", encoded[3, 33:].tobytes())
    assert bias == rows[3].min()
    assert scale == pytest.approx(float(np.ptp(rows[3])) / 255, rel=1e-6)
    steps = np.ptp(rows, axis=1, keepdims=True) / 255
    assert np.all(np.abs(ref.decode(encoded, "int8") - rows) <= 0.5001 * steps)


@pytest.mark.parametrize("codec", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_rows_without_range_are_kept_as_they_are(codec):
    rows = np.zeros((1, 4), dtype=np.float32)
    assert np.array_equal(ref.decode(ref.encode(rows, codec), codec), rows)
    if codec == "int8":
        assert np.array_equal(ref.decode(ref.encode(rows + 3, codec), codec), rows + 3)


@pytest.mark.parametrize("call", [ref.encode, ref.decode])
def test_an_unknown_codec_is_refused_with_those_there_are(call):
    with pytest.raises(InputError, match="expected one of fp16"):
        call(np.zeros((1, 1), dtype=np.float32), "zip")


def test_the_cache_drives_out_the_row_used_longest_ago_and_keeps_those_in_use():
    cache = ref.SetAssociativeCache(1)
    slots, evicted = cache.insert(np.arange(ref.WAYS), 0, keep_from=0)
    assert slots.tolist() == list(range(ref.WAYS))
    assert set(evicted.tolist()) == {ref.EMPTY}
    assert cache.query(np.array([0, 5, 99]), 1).tolist() == [0, 5, ref.EMPTY]
    assert [a.tolist() for a in cache.insert(np.array([99]), 1, keep_from=1)] == [[1], [1]]
    assert cache.query(np.array([1, 99]), 2).tolist() == [ref.EMPTY, 1]
    slots, evicted = cache.insert(np.array([200]), 2, keep_from=0)  # every way was used in step 0 or later
    assert (slots.tolist(), evicted.tolist()) == ([ref.EMPTY], [ref.EMPTY])


def test_a_tiered_look_up_reads_the_slot_where_there_is_one():
    host, cache = np.arange(6, dtype=np.float32).reshape(3, 2), np.full((4, 2), -1, dtype=np.float32)
    ref.copy_rows(cache, np.array([2, -1]), host, np.array([1, 0]))
    assert cache.tolist() == [[-1, -1], [-1, -1], [2, 3], [-1, -1]]
    assert ref.tiered_lookup(host, cache, np.array([0, 1]), np.array([-1, 0])).tolist() == [[0, 1], [-1, -1]]

"""Joins, means, codecs and clearing of every implementation: inverses of each other, and the reference bit for bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foreshard.kernels import reference as ref
from foreshard.kernels.reference_codecs import CODECS, ROW_OVERHEAD
from foreshard.simulator.job.codecs import wire_bytes
from foreshard.topologies.errors import InputError

from .cases import got, put

WIDTHS = st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4).filter(any)
DATA_TYPES = {"fp16": "fp16", "bf16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "int8": "int8"}


@given(widths=WIDTHS, samples=st.integers(0, 4), data=st.data())
def test_vectors_come_side_by_side_in_any_order_and_go_back_by_source(ops, widths, samples, data):
    sizes = [width for own in widths for width in own]
    order = data.draw(st.one_of(st.none(), st.permutations(range(len(sizes)))))
    pieces = {}
    sent, number = [], 0
    for own in widths:
        block = [np.random.default_rng(number + k).normal(size=(samples, width)) for k, width in enumerate(own)]
        pieces |= {number + k: piece.astype(np.float32) for k, piece in enumerate(block)}
        sent.append(np.concatenate([*(pieces[number + k] for k in range(len(own))), np.empty((samples, 0))], axis=1))
        number += len(own)
    flat = np.concatenate([block.ravel() for block in sent]).astype(np.float32)
    joined = ops.join(put(ops, flat), samples, widths, order)
    assert np.array_equal(got(joined), np.concatenate([pieces[k] for k in order or range(len(sizes))], axis=1))
    assert np.array_equal(got(ops.split(joined, widths, order)), flat)


@given(widths=st.lists(st.integers(1, 5), min_size=1, max_size=4), batch=st.integers(0, 5), seed=st.integers(0, 999))
def test_a_mean_divides_each_features_columns_by_its_ids_and_keeps_empty_bags(ops, widths, batch, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, (len(widths), batch))
    vectors = rng.normal(size=(batch, sum(widths))).astype(np.float32)
    divisors = np.repeat(np.maximum(lengths, 1).T, widths, axis=1).astype(np.float32)
    assert np.array_equal(got(ops.mean(put(ops, vectors), put(ops, lengths), widths)), vectors / divisors)


def rows_of(seed, rows, dim, scale):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, dim)).astype(np.float32) * np.float32(scale)
    values[rng.random((rows, dim)) < 0.1] = 0
    values[: rows // 4] = rng.choice([0.0, -0.0, 1.0], (rows // 4, 1))  # rows without a range
    return values


@given(
    codec=st.sampled_from(CODECS),
    rows=st.integers(0, 9),
    dim=st.one_of(st.integers(1, 20), st.sampled_from([128, 1024])),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]),
    seed=st.integers(0, 10**6),
)
def test_encoded_bytes_and_decoded_rows_are_the_references(ops, codec, rows, dim, scale, seed):
    values = rows_of(seed, rows, dim, scale)
    encoded = ops.encode(put(ops, values), codec)
    expected = ref.encode(values, codec)
    assert np.array_equal(got(encoded).view(np.uint8), expected.view(np.uint8))
    assert np.array_equal(got(ops.decode(encoded, codec)), ref.decode(expected, codec))


@pytest.mark.parametrize("codec", CODECS)
def test_ties_go_to_the_even_code(ops, codec):
    """Halves of whole numbers up to 255, or to 448 and 57344, so that row-wise scales are 1."""
    largest = {"fp8_e4m3": 448, "fp8_e5m2": 57344}.get(codec, 255)
    row = np.array([[0, 0.5, 1.5, 2.5, 17, 19, 253.5, 254.5, largest]], dtype=np.float32)
    assert np.array_equal(got(ops.encode(put(ops, row), codec)).view(np.uint8), ref.encode(row, codec).view(np.uint8))


@pytest.mark.parametrize("codec", CODECS)
def test_a_row_costs_the_bytes_that_the_simulator_prices(ops, codec):
    encoded = ops.encode(put(ops, rows_of(0, 6, 40, 1.0)), codec)
    assert encoded.numel() * encoded.element_size() == 6 * 40 * wire_bytes(DATA_TYPES[codec], 40)


@given(
    codec=st.sampled_from(CODECS), widths=st.lists(st.integers(1, 6), min_size=1, max_size=4), rows=st.integers(0, 4)
)
def test_vectors_of_a_row_have_scales_of_their_own(ops, codec, widths, rows):
    values = rows_of(1, rows, sum(widths), 1.0) * 10.0 ** np.repeat(np.arange(len(widths)), widths).astype(np.float32)
    columns = np.cumsum([0, *widths])
    parts = [np.ascontiguousarray(values[:, a:b]) for a, b in pairwise(columns)]
    encoded = ops.encode(put(ops, values), codec, widths)
    assert encoded.shape[1] == sum(widths) + len(widths) * ROW_OVERHEAD[codec]
    expected = np.concatenate([ref.decode(ref.encode(part, codec), codec) for part in parts], axis=1)
    assert np.array_equal(got(ops.decode(encoded, codec, widths)), expected)


def test_an_unknown_codec_is_refused(ops):
    with pytest.raises(InputError, match="unknown codec 'fp4': expected one of fp16"):
        ops.encode(put(ops, np.zeros((1, 1), np.float32)), "fp4")


def test_clearing_leaves_zeros_of_any_format(ops):
    tensors = [put(ops, np.ones((3, 2), np.float32)), put(ops, np.ones(5, np.float32)).to(torch.bfloat16)]
    ops.clear(tensors)
    ops.clear([])
    ops.synchronize()
    assert not any(bool(tensor.any()) for tensor in tensors)

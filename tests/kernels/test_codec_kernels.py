"""Codec kernels, run on the CPU, against the NumPy reference: equal byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from foreshard.kernels import reference as ref
from foreshard.kernels.codecs import decode, encode
from foreshard.kernels.reference_codecs import CODECS, ROW_OVERHEAD
from foreshard.topologies.errors import InputError

SCHEDULES = st.fixed_dictionaries(
    {"seed": st.integers(0, 9), "threads": st.sampled_from([32, 64]), "max_grid": st.integers(1, 4)}
)
FINITE = st.one_of(st.floats(-(2.0**126), 2.0**126, width=32), st.floats(-1, 1, width=32), st.sampled_from([0.0, -0.0]))
DIMS = st.one_of(st.integers(1, 20), st.sampled_from([32, 64, 129, 260]))


def assert_same_floats(got, expected):
    """Equal bits, except that any NaN is as good as any other."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(expected) & ~np.isnan(expected))


@pytest.mark.parametrize("codec", CODECS)
@given(
    rows=st.integers(0, 6).flatmap(lambda n: DIMS.flatmap(lambda dim: arrays(np.float32, (n, dim), elements=FINITE))),
    schedule=SCHEDULES,
)
def test_encoding_and_decoding_equal_the_reference(on_cpu, codec, rows, schedule):
    device = on_cpu(**schedule)
    encoded, expected = encode(rows, codec, device=device), ref.encode(rows, codec)
    assert encoded.dtype == expected.dtype
    assert np.array_equal(encoded.view(np.uint8), expected.view(np.uint8))
    assert_same_floats(decode(encoded, codec, device=device), ref.decode(expected, codec))


@pytest.mark.parametrize("codec", ["fp16", "bf16"])
def test_every_pattern_of_a_16_bit_format_decodes_and_encodes_as_in_numpy(on_cpu, codec):
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(16, -1)
    encoded = bits.view(np.float16) if codec == "fp16" else bits
    values = ref.decode(encoded, codec)
    device = on_cpu(max_grid=1000)
    assert_same_floats(decode(encoded, codec, device=device), values)
    near = np.nextafter(values, np.float32(np.inf), where=np.isfinite(values), out=values.copy())
    finite = np.unique(values[np.isfinite(values)]).astype(np.float64)
    ties = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)[None, :]
    for given_values in (values, near, ties):
        got, expected = encode(given_values, codec, device=device), ref.encode(given_values, codec)
        keep = ~np.isnan(given_values)
        assert np.array_equal(got.view(np.uint16)[keep], expected.view(np.uint16)[keep])
        assert np.all(np.isnan(ref.decode(got, codec)[~keep]))


@pytest.mark.parametrize("codec", ["fp8_e4m3", "fp8_e5m2"])
def test_every_fp8_code_decodes_and_every_middle_rounds_as_in_the_reference(on_cpu, codec):
    form = codec[4:]
    values = ref.fp8_values(form)
    finite = np.sort(values[np.isfinite(values)])
    middles = (finite[1:] + finite[:-1]) / 2
    above, below = np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))
    row = np.concatenate([finite, middles, above, below]).astype(np.float32)[None, :]  # largest value: scale 1
    assert np.array_equal(encode(row, codec, device=on_cpu()), ref.encode(row, codec))
    codes = np.concatenate([np.arange(256, dtype=np.uint8), np.float32(0.5).reshape(1).view(np.uint8)])[None, :]
    assert_same_floats(decode(codes, codec, device=on_cpu()), ref.decode(codes, codec))


def test_int8_rounds_ties_to_the_even_code(on_cpu):
    row = np.array([[0, 0.5, 1.5, 2.5, 253.5, 254.5, 255]], dtype=np.float32)  # bias 0, scale 1
    assert encode(row, "int8", device=on_cpu())[0, :7].tolist() == [0, 0, 2, 2, 254, 254, 255]
    assert ref.encode(row, "int8")[0, :7].tolist() == [0, 0, 2, 2, 254, 254, 255]


@pytest.mark.parametrize("codec", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_rows_whose_scale_is_the_smallest_fp32_are_clipped_as_in_the_reference(on_cpu, codec):
    largest = {"int8": 255, "fp8_e4m3": 448, "fp8_e5m2": 57344}[codec]
    row = np.array([[0, 0.7, 1.49]]) * largest * 2.0**-149  # 1.49 x largest in units of the scale
    rows = row.astype(np.float32)
    assert np.array_equal(encode(rows, codec, device=on_cpu()), ref.encode(rows, codec))


@pytest.mark.parametrize("codec", CODECS)
def test_dim_1024_equals_the_reference(on_cpu, codec):
    rows = np.random.default_rng(2).normal(size=(3, 1024)).astype(np.float32)
    encoded = encode(rows, codec, device=on_cpu())
    assert np.array_equal(encoded.view(np.uint8), ref.encode(rows, codec).view(np.uint8))


@pytest.mark.parametrize("codec", CODECS)
def test_rows_that_are_not_aligned_equal_the_reference(on_cpu, codec):
    memory = np.random.default_rng(3).normal(size=65).astype(np.float32)
    rows = memory[1:].reshape(4, 16)
    expected = ref.encode(rows, codec)
    assert np.array_equal(encode(rows, codec, device=on_cpu()).view(np.uint8), expected.view(np.uint8))
    shifted = np.empty(expected.size + 1, dtype=expected.dtype)[1:].reshape(expected.shape)
    shifted[:] = expected
    assert np.array_equal(decode(shifted, codec, device=on_cpu()), ref.decode(expected, codec))


@pytest.mark.parametrize("way", [encode, decode])
def test_wrong_input_is_refused(on_cpu, way):
    with pytest.raises(InputError, match="unknown codec 'zip': expected one of fp16"):
        way(np.zeros((1, 1), np.float32), "zip", device=on_cpu())
    with pytest.raises(InputError, match=r"has dtype float64(.|\n)*\[rows, dim\]"):
        way(np.zeros(3, np.float64), "int8", device=on_cpu())
    with pytest.raises(InputError, match=f"at least {1 + ROW_OVERHEAD['int8']} columns"):
        decode(np.zeros((3, 8), np.uint8), "int8", device=on_cpu())

"""Look-up kernels, run on the CPU, against the NumPy reference: equal bit for bit, since both add in the same order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshard.kernels import reference as ref
from foreshard.kernels.lookup import pooled_lookup, sequence_lookup
from foreshard.kernels.tables import FEATURE, TABLE, row_shape, table_group
from foreshard.topologies.errors import InputError

FORMATS = ("float32", "float16", "uint16")
DIMS = st.one_of(st.integers(1, 40), st.sampled_from([64, 96, 128, 160, 250]))
SCHEDULES = st.fixed_dictionaries(
    {"seed": st.integers(0, 9), "threads": st.sampled_from([32, 64, 128]), "max_grid": st.integers(1, 4)}
)


def make_rows(rng, count, dim, form, shift=0):
    """Rows [count, dim] whose first element lies `shift` elements behind an aligned address."""
    values = ref.rows_from_fp32(rng.normal(size=(count, dim)).astype(np.float32), np.dtype(form))
    memory = np.zeros(values.size + 16 + shift, dtype=form)
    begin = -memory.ctypes.data % 16 // memory.itemsize + shift
    rows = memory[begin : begin + values.size].reshape(count, dim)
    rows[:] = values
    return rows


def make_bags(rng, rows_of_features, batch, longest, id_type):
    """Ids and offsets; the first and the last row of every table are among the ids, some bags are empty."""
    lengths = rng.integers(0, longest + 1, size=len(rows_of_features) * batch)
    lengths *= rng.random(len(lengths)) < 0.8
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.empty(offsets[-1], dtype=id_type)
    for feature, rows in enumerate(rows_of_features):
        own = ids[offsets[feature * batch] : offsets[(feature + 1) * batch]]
        own[:] = rng.integers(0, rows, size=len(own))
        own[:1], own[-1:] = rows - 1, 0
    return ids, offsets


@given(
    dims=st.lists(DIMS, min_size=1, max_size=4),
    rows=st.integers(1, 30),
    batch=st.integers(0, 70),
    longest=st.sampled_from([0, 1, 3, 40]),
    form=st.sampled_from(FORMATS),
    id_type=st.sampled_from([np.int32, np.int64]),
    mode=st.sampled_from(["sum", "mean"]),
    weighted=st.booleans(),
    shift=st.sampled_from([0, 0, 1, 2, 3]),
    schedule=SCHEDULES,
    seed=st.integers(0, 10**6),
)
def test_pooled_look_ups_of_many_tables_equal_the_reference(
    on_cpu, dims, rows, batch, longest, form, id_type, mode, weighted, shift, schedule, seed
):
    rng = np.random.default_rng(seed)
    batch = batch if longest < 40 else batch % 9
    tables = [make_rows(rng, rows, dim, form, shift) for dim in dims]
    features = [*range(len(dims)), 0]  # the first table serves two features
    ids, offsets = make_bags(rng, [rows] * len(features), batch, longest, id_type)
    weights = rng.normal(size=len(ids)).astype(np.float32) if weighted else None
    group = table_group(tables, feature_tables=features, device=on_cpu(**schedule))
    got = pooled_lookup(group, ids, offsets, mode=mode, weights=weights, checked=True)
    expected = ref.pooled_tables(tables, features, ids, offsets, mode=mode, weights=weights)
    assert got.dtype == np.float32
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dim", [1, 3, 4, 31, 32, 100, 128, 132, 256, 511, 512, 516, 1000, 1023, 1024])
def test_dims_up_to_1024_equal_the_reference(on_cpu, form, dim):
    rng = np.random.default_rng(dim)
    tables = [make_rows(rng, 5, dim, form)]
    ids, offsets = np.array([0, 4, 4, 2, 1]), np.array([0, 2, 2, 5])
    group = table_group(tables, device=on_cpu(max_grid=10**6))
    assert np.array_equal(pooled_lookup(group, ids, offsets), ref.pooled_lookup(tables[0], ids, offsets))


@given(
    dim=DIMS,
    tables=st.integers(1, 4),
    rows=st.integers(1, 30),
    count=st.integers(0, 50),
    form=st.sampled_from(FORMATS),
    id_type=st.sampled_from([np.int32, np.int64]),
    shift=st.sampled_from([0, 1, 2]),
    schedule=SCHEDULES,
    seed=st.integers(0, 10**6),
)
def test_sequence_look_ups_equal_the_reference(on_cpu, dim, tables, rows, count, form, id_type, shift, schedule, seed):
    rng = np.random.default_rng(seed)
    weights = [make_rows(rng, rows, dim, form, shift * table) for table in range(tables)]
    starts = np.concatenate([[0], np.sort(rng.integers(0, count + 1, tables - 1)), [count]]).astype(np.int64)
    ids = rng.integers(0, rows, count).astype(id_type)
    ids[:1], ids[-1:] = rows - 1, 0
    got = sequence_lookup(table_group(weights, device=on_cpu(**schedule)), ids, starts, checked=True)
    parts = [ref.sequence_lookup(table, ids[a:b]) for table, a, b in zip(weights, starts, starts[1:], strict=False)]
    assert np.array_equal(got, np.concatenate(parts))


def test_descriptors_have_the_layout_that_c_gives_the_structures():
    assert (TABLE.itemsize, [TABLE.fields[name][1] for name in TABLE.names]) == (40, [0, 8, 16, 24, 28, 32, 36])
    assert (FEATURE.itemsize, [FEATURE.fields[name][1] for name in FEATURE.names]) == (16, [0, 8, 12])


@settings(max_examples=300)
@given(dim=st.integers(1, 1024), itemsize=st.sampled_from([2, 4]), address=st.integers(0, 64).map(lambda a: 2 * a))
def test_a_row_is_covered_once_by_aligned_vectors(dim, itemsize, address):
    if address % itemsize:
        return
    shape = row_shape(dim, itemsize, address)
    assert dim % shape.vector == 0
    assert all((address + row * dim * itemsize) % (shape.vector * itemsize) == 0 for row in range(3))
    assert (shape.chunks - 1) * shape.lanes * shape.vector < dim <= shape.chunks * shape.lanes * shape.vector
    assert shape.vector * itemsize <= 16


def group_of_two(on_cpu):
    tables = [np.ones((3, 2), dtype=np.float32), np.ones((5, 4), dtype=np.float32)]
    return table_group(tables, device=on_cpu())


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 3, 1, 1], "1 ids lie outside their table, first id 3 of feature 0, at position 1: expected 0 to 2"),
        ([0, 2, 1, -1], "first id -1 of feature 1, at position 3: expected 0 to 4"),
        ([0, 2, 5, 9], "2 ids lie outside their table, first id 5 of feature 1, at position 2"),
    ],
)
def test_checked_look_ups_name_the_first_id_outside_its_table(on_cpu, ids, message):
    with pytest.raises(InputError, match=message):
        pooled_lookup(group_of_two(on_cpu), np.array(ids), np.array([0, 1, 2, 3, 4]), checked=True)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [([0, 1, 2, 3, 5], "run from 0 to 5: expected 0 to 4"), ([0, 3, 2, 3, 4], "fall somewhere")],
)
def test_checked_look_ups_refuse_offsets_that_do_not_rise_to_the_number_of_ids(on_cpu, offsets, message):
    with pytest.raises(InputError, match=message):
        pooled_lookup(group_of_two(on_cpu), np.zeros(4, dtype=np.int64), np.array(offsets), checked=True)


def test_all_mistakes_of_a_look_up_are_named_at_once(on_cpu):
    weights = np.ones(2, dtype=np.float64)
    with pytest.raises(InputError) as caught:
        pooled_lookup(group_of_two(on_cpu), np.zeros(3, dtype=np.float32), np.zeros(4, dtype=np.int64), weights=weights)
    text = str(caught.value)
    assert "ids has dtype float32: expected int64 or int32" in text
    assert "offsets has shape [4]: expected [2 features x batch + 1]" in text
    assert "weights has dtype float64: expected float32" in text
    assert "weights has shape [2]: expected [3], one for each id" in text


def test_an_unknown_mode_is_refused(on_cpu):
    with pytest.raises(InputError, match="expected one of sum, mean"):
        pooled_lookup(group_of_two(on_cpu), np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64), mode="max")


def test_sequences_of_different_dims_or_of_several_bags_are_refused(on_cpu):
    with pytest.raises(InputError, match=r"tables have dims \[2, 4\]"):
        sequence_lookup(group_of_two(on_cpu), np.zeros(0, dtype=np.int64), np.zeros(3, dtype=np.int64))
    one = table_group([np.ones((3, 2), dtype=np.float32)], device=on_cpu())
    with pytest.raises(InputError, match="starts has 3 values: expected 2"):
        sequence_lookup(one, np.zeros(2, dtype=np.int64), np.arange(3))


@pytest.mark.parametrize(
    "given", [{"weights": np.ones((9, 2))}, {"weights": [np.ones((9, 2))], "momentum": np.ones(9)}]
)
def test_one_array_in_place_of_a_list_of_tables_is_refused(on_cpu, given):
    with pytest.raises(InputError, match=r"(weights|momentum) is one array of shape \[9.*expected a list"):
        table_group(**given, device=on_cpu())


def test_all_mistakes_of_a_table_group_are_named_at_once(on_cpu):
    good, half, flat = np.ones((3, 2), np.float32), np.ones((3, 2), np.float16), np.ones(3, np.float64)
    with pytest.raises(InputError) as caught:
        table_group([good, half, flat], feature_tables=[0, 7], momentum=[np.ones(2, np.float32)], device=on_cpu())
    text = str(caught.value)
    for part in (
        "table 1 is float16 but table 0 float32",
        "table 2 has shape [3]",
        "table 2 has dtype float64",
        "feature_tables names tables [7]: expected 0 to 2",
        "1 momentum arrays for 3 tables",
        "momentum 0 has shape [2]: expected [3]",
    ):
        assert part in text

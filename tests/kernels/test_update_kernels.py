"""Update kernels, run on the CPU, against the NumPy reference, under any schedule and for rows hot enough to be cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.kernels import reference as ref
from foreshard.kernels.tables import table_group
from foreshard.kernels.update import sum_pooled, sum_sequence, update_pooled, update_sequence
from foreshard.topologies.errors import InputError

FORMATS = ("float32", "float16", "uint16")
SCHEDULES = st.fixed_dictionaries(
    {"seed": st.integers(0, 9), "threads": st.sampled_from([32, 64, 128]), "max_grid": st.integers(1, 4)}
)
RELATIVE = {"float32": 2e-6, "float16": 2e-3, "uint16": 2e-2}  # a few roundings of the row's own format


def make_table(rng, rows, dim, form):
    return ref.rows_from_fp32(rng.normal(size=(rows, dim)).astype(np.float32), np.dtype(form))


def make_case(rng, dims, rows, features, batch, longest):
    """Ids, offsets, weights and gradients of a pooled look-up whose ids often repeat."""
    lengths = rng.integers(0, longest + 1, size=len(features) * batch)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = (rng.random(offsets[-1]) ** 3 * rows).astype(np.int64)
    width = sum(dims[table] for table in features)
    return (
        ids,
        offsets,
        rng.normal(size=len(ids)).astype(np.float32),
        rng.normal(size=(batch, width)).astype(np.float32),
    )


def reference_update(tables, momenta, features, optimizer, gradients, ids, offsets, mode, weights, chunk):
    """Every table by itself: its features' look-ups in order, the gradients of their columns."""
    batch, columns = len(gradients), np.cumsum([0, *(tables[table].shape[1] for table in features)])
    out = []
    for index, table in enumerate(tables):
        own_ids, own_gradients = [], []
        for feature in (f for f, used in enumerate(features) if used == index):
            span = offsets[feature * batch : (feature + 1) * batch + 1]
            own = slice(span[0], span[-1])
            part = gradients[:, columns[feature] : columns[feature + 1]]
            factors = None if weights is None else weights[own]
            own_ids.append(ids[own])
            own_gradients.append(ref.spread_gradients(part, span - span[0], mode=mode, weights=factors))
        joined = np.concatenate(own_ids), np.concatenate(own_gradients)
        out.append(ref.update_rows(table, momenta[index], *joined, optimizer, chunk=chunk))
    return out


@given(
    dims=st.lists(st.one_of(st.integers(1, 20), st.sampled_from([32, 64, 130])), min_size=1, max_size=3),
    fours=st.booleans(),
    rows=st.integers(1, 12),
    batch=st.integers(0, 12),
    longest=st.sampled_from([0, 1, 3, 9]),
    form=st.sampled_from(FORMATS),
    mode=st.sampled_from(["sum", "mean"]),
    weighted=st.booleans(),
    chunk=st.sampled_from([1, 2, 5, 512]),
    replicas=st.integers(1, 4),
    eps=st.sampled_from([1e-8, 0.5]),
    schedule=SCHEDULES,
    seed=st.integers(0, 10**6),
)
def test_pooled_updates_of_many_tables_equal_the_reference(
    on_cpu, dims, fours, rows, batch, longest, form, mode, weighted, chunk, replicas, eps, schedule, seed
):
    rng = np.random.default_rng(seed)
    dims = [4 * dim if fours and dim < 20 else dim for dim in dims]
    features = [*range(len(dims)), 0]
    ids, offsets, weights, gradients = make_case(rng, dims, rows, features, batch, longest)
    weights = weights if weighted else None
    tables = [make_table(rng, rows, dim, form) for dim in dims]
    momenta = [rng.random(rows).astype(np.float32) for _ in dims]
    for optimizer in (ref.Sgd(learning_rate=0.1), ref.RowWiseAdagrad(learning_rate=0.1, eps=eps, replicas=replicas)):
        adaptive = isinstance(optimizer, ref.RowWiseAdagrad)
        given_momenta = momenta if adaptive else [None] * len(dims)
        call = (optimizer, gradients, ids, offsets, mode, weights, chunk)
        expected = reference_update(tables, given_momenta, features, *call)
        copies, states = [table.copy() for table in tables], [state.copy() for state in momenta]
        group = table_group(copies, feature_tables=features, momentum=states, device=on_cpu(**schedule))
        update_pooled(group, optimizer, gradients, ids, offsets, mode=mode, weights=weights, chunk=chunk)
        for got, state, before, (wanted, wanted_state) in zip(copies, states, momenta, expected, strict=True):
            if adaptive:
                np.testing.assert_allclose(state, wanted_state, rtol=2e-6)
                tolerance = RELATIVE[form]
                np.testing.assert_allclose(ref.rows_to_fp32(got), ref.rows_to_fp32(wanted), tolerance, tolerance)
            else:
                assert np.array_equal(got, wanted)
                assert np.array_equal(state, before)


@given(
    dim=st.sampled_from([1, 3, 4, 8, 33, 128]),
    rows=st.integers(1, 8),
    tables=st.integers(1, 3),
    count=st.integers(0, 60),
    chunk=st.sampled_from([2, 512]),
    schedule=SCHEDULES,
    seed=st.integers(0, 10**6),
)
def test_sequence_updates_with_sgd_equal_the_reference_bit_for_bit(
    on_cpu, dim, rows, tables, count, chunk, schedule, seed
):
    rng = np.random.default_rng(seed)
    weights = [make_table(rng, rows, dim, "float32") for _ in range(tables)]
    starts = np.concatenate([[0], np.sort(rng.integers(0, count + 1, tables - 1)), [count]]).astype(np.int64)
    ids, gradients = rng.integers(0, rows, count), rng.normal(size=(count, dim)).astype(np.float32)
    optimizer = ref.Sgd(learning_rate=0.5)
    spans = list(zip(weights, starts, starts[1:], strict=False))
    expected = [ref.update_rows(w, None, ids[a:b], gradients[a:b], optimizer, chunk=chunk)[0] for w, a, b in spans]
    update_sequence(
        table_group(weights, device=on_cpu(**schedule)), optimizer, gradients, ids, starts, chunk=chunk, checked=True
    )
    assert all(np.array_equal(got, wanted) for got, wanted in zip(weights, expected, strict=True))


@given(
    dims=st.lists(st.one_of(st.integers(1, 20), st.sampled_from([32, 130])), min_size=1, max_size=3),
    fours=st.booleans(),
    batch=st.integers(0, 12),
    longest=st.sampled_from([0, 1, 9]),
    mode=st.sampled_from(["sum", "mean"]),
    weighted=st.booleans(),
    chunk=st.sampled_from([1, 2, 5, 512]),
    schedule=SCHEDULES,
    seed=st.integers(0, 10**6),
)
def test_sums_by_row_equal_the_reference_bit_for_bit_and_touch_no_row(
    on_cpu, dims, fours, batch, longest, mode, weighted, chunk, schedule, seed
):
    rng = np.random.default_rng(seed)
    dims = [4 * dim if fours and dim < 20 else dim for dim in dims]
    features = [*range(len(dims)), 0]
    ids, offsets, weights, gradients = make_case(rng, dims, 9, features, batch, longest)
    weights = weights if weighted else None
    tables = [make_table(rng, 9, dim, "float16") for dim in dims]
    copies = [table.copy() for table in tables]
    group = table_group(copies, feature_tables=features, device=on_cpu(**schedule))
    found = sum_pooled(group, gradients, ids, offsets, mode=mode, weights=weights, checked=True, chunk=chunk)
    columns = np.cumsum([0, *(dims[table] for table in features)])
    assert len(found) == len(tables)
    for table, own in enumerate(found):
        mine = [f for f, used in enumerate(features) if used == table]
        spans = [offsets[f * batch : (f + 1) * batch + 1] for f in mine]
        own_ids = np.concatenate([ids[span[0] : span[-1]] for span in spans])
        parts = [
            ref.spread_gradients(
                gradients[:, columns[f] : columns[f + 1]],
                span - span[0],
                mode=mode,
                weights=None if weights is None else weights[span[0] : span[-1]],
            )
            for f, span in zip(mine, spans, strict=True)
        ]
        segments = ref.segment(own_ids)
        assert np.array_equal(own.rows, segments.rows)
        assert np.array_equal(own.sums, ref.sum_segments(segments, np.concatenate(parts), chunk=chunk))
        assert np.array_equal(copies[table], tables[table])


def test_sums_of_sequences_are_those_of_their_rows_and_mistakes_are_named(on_cpu):
    rng = np.random.default_rng(0)
    ids, gradients = np.array([4, 1, 4, 0, 0]), rng.normal(size=(5, 6)).astype(np.float32)
    group = table_group([np.zeros((5, 6), dtype=np.float32)] * 2, device=on_cpu())
    first, second = sum_sequence(group, gradients, ids, np.array([0, 3, 5]))
    assert first.rows.tolist() == [1, 4]
    assert np.array_equal(first.sums, [gradients[1], gradients[0] + gradients[2]])
    assert np.array_equal(second.sums, [gradients[3] + gradients[4]])
    with pytest.raises(InputError, match=r"gradients has shape \[5, 6\]: expected \[4, 6\]"):
        sum_sequence(group, gradients, ids[:4], np.array([0, 3, 4]))


@pytest.mark.parametrize("dim", [8, 1023, 1024])
def test_one_hot_row_of_all_look_ups_is_summed_in_chunks_of_the_documented_length(on_cpu, dim):
    rng = np.random.default_rng(dim)
    ids, gradients = np.zeros(1300, dtype=np.int64), rng.normal(size=(1300, dim)).astype(np.float32)
    table, optimizer = np.zeros((2, dim), dtype=np.float32), ref.Sgd(learning_rate=1.0)
    expected, _ = ref.update_rows(table, None, ids, gradients, optimizer)
    update_sequence(table_group([table], device=on_cpu(max_grid=64)), optimizer, gradients, ids, np.array([0, 1300]))
    assert np.array_equal(table, expected)


@pytest.mark.parametrize("form", FORMATS)
def test_adagrad_gives_the_same_bits_under_every_schedule(on_cpu, form):
    rng = np.random.default_rng(5)
    start, ids = make_table(rng, 6, 70, form), rng.integers(0, 6, 200)
    gradients, optimizer = rng.normal(size=(200, 70)).astype(np.float32), ref.RowWiseAdagrad(learning_rate=0.1)
    results = set()
    for seed, threads, grid in ((0, 32, 1), (1, 64, 9), (2, 128, 40), (3, 96, 2)):
        table, state = start.copy(), np.zeros(6, dtype=np.float32)
        group = table_group([table], momentum=[state], device=on_cpu(seed=seed, threads=threads, max_grid=grid))
        update_sequence(group, optimizer, gradients, ids, np.array([0, 200]), chunk=16)
        results.add(table.tobytes() + state.tobytes())
    assert len(results) == 1


def test_rows_that_no_look_up_names_stay_as_they_are(on_cpu):
    table, state = np.ones((4, 8), dtype=np.float32), np.ones(4, dtype=np.float32)
    group = table_group([table], momentum=[state], device=on_cpu())
    gradients, ids = np.ones((2, 8), dtype=np.float32), np.array([3, 3])
    update_sequence(group, ref.RowWiseAdagrad(learning_rate=1.0), gradients, ids, np.array([0, 2]))
    assert np.all(table[:3] == 1)
    assert np.all(state[:3] == 1)
    assert np.all(table[3] < 1)
    assert state[3] == 5  # 1 + mean of squares of the summed gradient 2


@pytest.mark.parametrize(
    "call", [sum_pooled, lambda group, *rest, **mode: update_pooled(group, ref.Sgd(learning_rate=1.0), *rest, **mode)]
)
def test_an_unknown_mode_is_refused(on_cpu, call):
    group = table_group([np.ones((4, 2), dtype=np.float32)], device=on_cpu())
    with pytest.raises(InputError, match="unknown mode 'max': expected one of sum, mean"):
        call(group, np.ones((1, 2), np.float32), np.array([3]), np.array([0, 1]), mode="max")


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_an_unknown_optimizer_is_refused(on_cpu, optimizer):
    group = table_group([np.ones((4, 2), dtype=np.float32)], device=on_cpu())
    with pytest.raises(InputError, match=f"optimizer is a {type(optimizer).__name__}: expected Sgd or RowWiseAdagrad"):
        update_pooled(group, optimizer, np.ones((1, 2), np.float32), np.array([3]), np.array([0, 1]))


def test_bits_of_bf16_are_named_so_where_they_are_not_expected(on_cpu):
    group = table_group([np.ones((4, 2), dtype=np.float32)], device=on_cpu())
    with pytest.raises(InputError, match=r"gradients has dtype uint16 \(the bits of bfloat16\): expected float32"):
        sum_pooled(group, np.ones((1, 2), np.uint16), np.array([3]), np.array([0, 1]))


def test_all_mistakes_of_an_update_are_named_at_once(on_cpu):
    group = table_group([np.ones((4, 13_000), dtype=np.float32)], device=on_cpu())
    optimizer = ref.RowWiseAdagrad(learning_rate=1.0, eps=0.0, replicas=0)
    with pytest.raises(InputError) as caught:
        update_pooled(group, optimizer, np.ones((2, 8), np.float64), np.array([3, 3]), np.array([0, 1, 2]), chunk=0)
    text = str(caught.value)
    for part in (
        "gradients has dtype float64: expected float32",
        "gradients has shape [2, 8]: expected [2, 13000]",
        "row-wise AdaGrad needs momentum",
        "eps is 0.0: expected above 0",
        "replicas is 0",
        "chunk is 0",
        "dim 13000 is wider than 12288: shard the table column_wise",
    ):
        assert part in text

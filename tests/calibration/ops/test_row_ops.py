"""Look-ups, sums by row and optimizer steps of every implementation against the NumPy reference of the kernels.

Unweighted sums are equal bit for bit. Weights may be multiplied and added with one rounding (torch's embedding_bag) or
two (kernels, reference): then sums may differ by WEIGHTED of the largest term. Optimizers that divide and take roots:
STEPS.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foreshard.calibration.ops.device_ops import RowGradients
from foreshard.calibration.ops.optimizers import Adagrad, Adam, RowWiseAdagrad, Sgd
from foreshard.kernels import reference as ref
from foreshard.kernels.reference_update import LONG_SEGMENT
from foreshard.topologies.errors import InputError

from .cases import CASES, got, make_case, put

WEIGHTED = {"rtol": 1e-5, "atol": 1e-5}  # up to 10 terms of size 1, each rounded once more: 10 x 2^-24
STEPS = {"float32": 2e-6, "float16": 2e-3, "uint16": 2e-2}  # a few roundings of the row's own format


def tables_of(ops, case, optimizer=None):
    return ops.tables([put(ops, rows) for rows in case.tables], feature_tables=case.features, optimizer=optimizer)


def assert_equal_sums(found, expected, weighted):
    if weighted:
        np.testing.assert_allclose(found, expected, **WEIGHTED)
    else:
        assert np.array_equal(found, expected)


@given(case=CASES)
def test_pooled_look_ups_equal_the_reference(ops, case):
    found = got(ops.pooled_lookup(tables_of(ops, case), case.bags(ops), mode=case.modes))
    assert found.dtype == np.float32
    assert_equal_sums(found, case.pooled(), case.weights is not None)


@pytest.mark.parametrize("dim", [1, 3, 4, 100, 128, 1000, 1024])
@pytest.mark.parametrize("form", ["float32", "float16", "uint16"])
def test_pooled_look_ups_of_any_dim(ops, dim, form):
    case = make_case(dim, [dim], forms=[form], longest=40, batch=3)
    assert np.array_equal(got(ops.pooled_lookup(tables_of(ops, case), case.bags(ops))), case.pooled())


@given(case=CASES)
def test_sequences_are_the_rows_themselves(ops, case):
    found = ops.sequence_lookup(tables_of(ops, case), case.bags(ops))
    assert len(found) == len(case.features)
    for feature, vectors in enumerate(found):
        expected = ref.sequence_lookup(case.tables[case.features[feature]], case.own(feature)[0])
        assert np.array_equal(got(vectors), expected)


@given(case=CASES)
def test_gradients_are_summed_once_per_distinct_row(ops, case):
    found = ops.sum_pooled(tables_of(ops, case), put(ops, case.gradients), case.bags(ops), mode=case.modes)
    for table, own in enumerate(found):
        ids, gradients = case.spread(table)
        segments = ref.segment(ids)
        assert np.array_equal(got(own.rows), segments.rows)
        assert_equal_sums(got(own.sums), ref.sum_segments(segments, gradients), case.weights is not None)


def test_a_row_hot_enough_to_be_summed_in_chunks_has_the_bits_of_the_reference(ops):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 3, 5 * LONG_SEGMENT)
    gradients = rng.normal(size=(len(ids), 5)).astype(np.float32)
    tables = ops.tables([put(ops, np.zeros((3, 5), np.float32))])
    bags = ops.bags(put(ops, ids), put(ops, np.array([[len(ids)]])))
    (found,) = ops.sum_sequence(tables, [put(ops, gradients)], bags)
    assert np.array_equal(got(found.sums), ref.sum_segments(ref.segment(ids), gradients))


@given(case=CASES, replicas=st.integers(1, 4), eps=st.sampled_from([1e-8, 0.5]), adaptive=st.booleans())
def test_updates_equal_the_reference(ops, case, replicas, eps, adaptive):
    optimizer = RowWiseAdagrad(learning_rate=0.1, eps=eps, replicas=replicas) if adaptive else Sgd(learning_rate=0.1)
    tables = tables_of(ops, case, optimizer)
    ops.update_pooled(tables, optimizer, put(ops, case.gradients), case.bags(ops), mode=case.modes)
    for table, before in enumerate(case.tables):
        ids, gradients = case.spread(table)
        expected, momentum = ref.update_rows(before, np.zeros(len(before), np.float32), ids, gradients, optimizer)
        found = got(tables.weights[table])
        if not adaptive and case.weights is None:
            assert np.array_equal(found, expected)
            continue
        close = STEPS[str(before.dtype)] if case.weights is None else 10 * STEPS[str(before.dtype)]
        np.testing.assert_allclose(ref.rows_to_fp32(found), ref.rows_to_fp32(expected), rtol=close, atol=close)
        if adaptive:
            np.testing.assert_allclose(got(tables.state[table][0]), momentum, rtol=1e-5, atol=1e-6)


@given(case=CASES, optimizer=st.sampled_from([Sgd(learning_rate=0.1), RowWiseAdagrad(learning_rate=0.1)]))
def test_a_sequences_update_is_that_of_its_summed_rows(ops, case, optimizer):
    rng = np.random.default_rng(1)
    gradients = [
        rng.normal(size=(len(case.own(f)[0]), case.tables[table].shape[1])).astype(np.float32)
        for f, table in enumerate(case.features)
    ]
    tables = tables_of(ops, case, optimizer)
    ops.update_sequence(tables, optimizer, [put(ops, one) for one in gradients], case.bags(ops))
    for table, before in enumerate(case.tables):
        mine = [f for f, used in enumerate(case.features) if used == table]
        ids = np.concatenate([np.empty(0, np.int64), *(case.own(f)[0] for f in mine)])
        own = np.concatenate([np.empty((0, before.shape[1]), np.float32), *(gradients[f] for f in mine)])
        expected, _ = ref.update_rows(before, np.zeros(len(before), np.float32), ids, own, optimizer)
        close = STEPS[str(before.dtype)]
        np.testing.assert_allclose(
            ref.rows_to_fp32(got(tables.weights[table])), ref.rows_to_fp32(expected), rtol=close, atol=close
        )


@given(case=CASES)
def test_rows_that_several_replicas_touched_are_summed_and_stepped_once(ops, case):
    optimizer = Sgd(learning_rate=0.5)
    tables = tables_of(ops, case)
    lists = []
    for rows in case.tables:
        rng = np.random.default_rng(len(rows))
        ids = rng.integers(0, len(rows), 9)
        lists.append((ids, rng.normal(size=(9, rows.shape[1])).astype(np.float32)))
    given_rows = [RowGradients(rows=put(ops, ids), sums=put(ops, sums)) for ids, sums in lists]
    ops.update_rows(tables, optimizer, given_rows)
    for table, (ids, sums) in enumerate(lists):
        expected, _ = ref.update_rows(case.tables[table], None, ids, sums, optimizer)
        assert np.array_equal(got(tables.weights[table]), expected)


@given(case=CASES)
def test_gradients_are_added_to_what_is_there(ops, case):
    dims = [rows.shape[1] for rows in case.tables]
    before = [np.random.default_rng(d).integers(-3, 4, (len(case.tables[0]), d)).astype(np.float32) for d in dims]
    targets = [put(ops, one) for one in before]
    ops.add_pooled(targets, case.features, put(ops, case.gradients), case.bags(ops), mode=case.modes)
    for table, target in enumerate(targets):
        ids, gradients = case.spread(table)
        segments, expected = ref.segment(ids), before[table].copy()
        expected[segments.rows] += ref.sum_segments(segments, gradients)
        assert_equal_sums(got(target), expected, case.weights is not None)


@given(case=CASES)
def test_pooling_distinct_vectors_is_pooling_the_rows(ops, case):
    """What is looked up once a distinct id, then pooled on the batch owner, is what the row owner would have pooled."""
    ids, distinct = case.ids.copy(), []
    for table, rows in enumerate(case.tables):
        spans = [case.spans[f] for f, used in enumerate(case.features) if used == table]
        mine = np.concatenate([np.empty(0, np.int64), *(case.ids[a:b] for a, b in spans)])
        found, inverse = ops.deduplicate(put(ops, mine), num_embeddings=len(rows))
        assert np.array_equal(got(found), np.unique(mine))
        distinct.append(put(ops, ref.sequence_lookup(rows, got(found))))
        places = got(inverse)
        for begin, end in spans:
            ids[begin:end], places = places[: end - begin], places[end - begin :]
    weights = None if case.weights is None else put(ops, case.weights)
    bags = ops.bags(put(ops, ids), put(ops, case.lengths), weights)
    assert_equal_sums(
        got(ops.from_distinct(distinct, case.features, bags, mode=case.modes)), case.pooled(), weights is not None
    )
    for feature, vectors in enumerate(ops.expand(distinct, case.features, bags)):
        assert np.array_equal(
            got(vectors), ref.sequence_lookup(case.tables[case.features[feature]], case.own(feature)[0])
        )


def test_adagrad_by_hand(ops):
    """Gradients 3 and 4 of one row, state 7 and 0: v becomes 16 and 16."""
    optimizer = Adagrad(learning_rate=1.0, eps=1.0)
    state = put(ops, np.array([[9.0, 9.0], [7.0, 0.0]], np.float32))
    tables = ops.tables([put(ops, np.array([[1.0, 1.0], [5.0, 5.0]], np.float32))], state=[[state]])
    bags = ops.bags(put(ops, np.array([1, 1])), put(ops, np.array([[2]])))
    ops.update_pooled(tables, optimizer, put(ops, np.array([[1.5, 2.0]], np.float32)), bags)
    assert got(state).tolist() == [[9, 9], [16, 16]]
    np.testing.assert_allclose(got(tables.weights[0]), [[1, 1], [5 - 3 / 5, 5 - 4 / 5]], rtol=1e-6)


def test_the_first_step_of_adam_is_the_learning_rate_in_the_gradients_direction(ops):
    optimizer = Adam(learning_rate=0.25, eps=1e-12)
    tables = ops.tables([put(ops, np.zeros((3, 2), np.float32))], optimizer=optimizer)
    bags = ops.bags(put(ops, np.array([2])), put(ops, np.array([[1]])))
    ops.update_sequence(tables, optimizer, [put(ops, np.array([[3.0, -0.5]], np.float32))], bags)
    np.testing.assert_allclose(got(tables.weights[0]), [[0, 0], [0, 0], [-0.25, 0.25]], rtol=1e-5)


def test_adam_follows_torchs_on_rows_that_every_step_touches(ops):
    rng = np.random.default_rng(3)
    start, gradients = rng.normal(size=(4, 6)).astype(np.float32), rng.normal(size=(5, 4, 6)).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    reference = torch.optim.Adam([parameter], lr=0.1, eps=1e-8)
    tables = ops.tables([put(ops, start)], optimizer=Adam(learning_rate=0.1))
    bags = ops.bags(put(ops, np.arange(4)), put(ops, np.array([[4]])))
    for step, gradient in enumerate(gradients, start=1):
        parameter.grad = torch.from_numpy(gradient)
        reference.step()
        ops.update_sequence(tables, Adam(learning_rate=0.1, step=step), [put(ops, gradient)], bags)
    np.testing.assert_allclose(got(tables.weights[0]), parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 10**6))
def test_whole_numbers_are_exact_with_weights_too(ops, seed):
    case = make_case(seed, [3, 8], longest=9, weighted=True, whole=True)
    tables, optimizer = tables_of(ops, case), Sgd(learning_rate=0.5)
    assert np.array_equal(got(ops.pooled_lookup(tables, case.bags(ops))), case.pooled())
    ops.update_pooled(tables, optimizer, put(ops, case.gradients), case.bags(ops))
    for table, before in enumerate(case.tables):
        expected, _ = ref.update_rows(before, None, *case.spread(table), optimizer)
        assert np.array_equal(got(tables.weights[table]), expected)


def test_the_same_bits_each_time(ops):
    case, optimizer = make_case(5, [16, 7], rows=3, batch=200, longest=9), RowWiseAdagrad(learning_rate=0.1)
    results = set()
    for _ in range(3):
        tables = tables_of(ops, case, optimizer)
        ops.update_pooled(tables, optimizer, put(ops, case.gradients), case.bags(ops))
        results.add(b"".join(got(rows).tobytes() for rows in tables.weights))
    assert len(results) == 1


def test_wrong_tables_are_named_all_at_once(ops):
    with pytest.raises(InputError) as caught:
        ops.tables([put(ops, np.zeros(4, np.float32)), put(ops, np.zeros((2, 2)))], feature_tables=[0, 5])
    for part in ("table 0 has shape [4]", "table 1 has dtype torch.float64", "tables [5]: expected 0 to 1"):
        assert part in str(caught.value)


def test_an_optimizer_without_its_state_says_what_to_give(ops):
    tables = ops.tables([put(ops, np.zeros((2, 2), np.float32))])
    bags = ops.bags(put(ops, np.array([1])), put(ops, np.array([[1]])))
    with pytest.raises(InputError, match=r"RowWiseAdagrad keeps state, tables \[0\] have none: give it"):
        ops.update_pooled(tables, RowWiseAdagrad(learning_rate=0.1), put(ops, np.ones((1, 2), np.float32)), bags)

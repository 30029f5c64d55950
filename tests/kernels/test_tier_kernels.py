"""Cache and copy kernels, run on the CPU, against the NumPy reference cache; look-ups through it see current rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.kernels import reference as ref
from foreshard.kernels.tiers import RowCache, copy_rows, pinned_rows
from foreshard.topologies.errors import InputError

SCHEDULES = st.fixed_dictionaries(
    {"seed": st.integers(0, 9), "threads": st.sampled_from([32, 64]), "max_grid": st.integers(1, 4)}
)


@given(
    sets=st.integers(1, 3),
    batches=st.lists(
        st.lists(st.integers(0, 150) | st.integers(0, 5), max_size=60), min_size=1, max_size=6
    ),  # some ids many times
    kept_steps=st.integers(0, 2),
    schedule=SCHEDULES,
)
def test_hits_slots_and_evictions_equal_the_reference_step_by_step(on_cpu, sets, batches, kept_steps, schedule):
    host = np.zeros((151, 4), dtype=np.float32)
    cache, expected = RowCache(host, sets, device=on_cpu(**schedule)), ref.SetAssociativeCache(sets)
    for step, batch in enumerate(batches):
        ids = np.array(batch, dtype=np.int64)
        slots = cache.query(ids, step)
        assert np.array_equal(slots, expected.query(ids, step))
        missing = np.unique(ids[slots < 0])
        got = cache.insert(missing, step, keep_from=step - kept_steps)
        wanted = expected.insert(missing, step, keep_from=step - kept_steps)
        assert all(np.array_equal(one, other) for one, other in zip(got, wanted, strict=True))
        assert np.array_equal(cache.tags, expected.tags)
        assert np.array_equal(cache.stamps, expected.stamps)


@given(
    batches=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=50), min_size=1, max_size=5),
    dim=st.sampled_from([1, 3, 4, 8, 40]),
    form=st.sampled_from(["float32", "float16", "uint16"]),
    schedule=SCHEDULES,
)
def test_rows_updated_in_the_cache_are_never_lost(on_cpu, batches, dim, form, schedule):
    """Trains through the cache, one value more each time a row is used, and compares with a plain table."""
    host, plain = np.zeros((100, dim), dtype=form), np.zeros((100, dim), dtype=form)
    cache = RowCache(host, 1, device=on_cpu(**schedule))
    for step, batch in enumerate(batches):
        ids = np.array(batch, dtype=np.int64)
        distinct = np.unique(ids)
        slots = cache.query(distinct, step)
        missing = slots < 0
        slots[missing] = cache.fetch(distinct[missing], step, keep_from=step)
        vectors = cache.lookup(ids, slots[np.searchsorted(distinct, ids)])
        assert np.array_equal(vectors, ref.rows_to_fp32(plain[ids]))
        held = slots >= 0
        cache.rows[slots[held]] += np.ones(1, dtype=form)
        host[distinct[~held]] += np.ones(1, dtype=form)
        plain[distinct] += np.ones(1, dtype=form)
    cache.flush()
    assert np.array_equal(host, plain)


@given(
    pairs=st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9)), max_size=10, unique_by=lambda pair: pair[0]),
    dim=st.sampled_from([1, 2, 3, 4, 6, 16, 300]),
    form=st.sampled_from(["uint8", "float16", "float32"]),
    shift=st.integers(0, 2),
    schedule=SCHEDULES,
)
def test_row_copies_equal_the_reference(on_cpu, pairs, dim, form, shift, schedule):
    memory = (np.arange(shift + 10 * dim) % 251).astype(form)
    source = memory[shift:].reshape(10, dim)
    to, come_from = np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
    got, expected = np.zeros((10, dim), dtype=form), np.zeros((10, dim), dtype=form)
    copy_rows(got, to, source, come_from, len(to), device=on_cpu(**schedule))
    ref.copy_rows(expected, to, source, come_from)
    assert np.array_equal(got, expected)


def test_wrong_input_is_refused(on_cpu):
    with pytest.raises(InputError, match=r"0 sets(.|\n)*") as caught:
        RowCache(np.zeros(3, dtype=np.float64), 0, device=on_cpu())
    assert "host rows has dtype float64" in str(caught.value)
    cache = RowCache(np.zeros((3, 2), dtype=np.float32), 1, device=on_cpu())
    with pytest.raises(InputError, match="ids has dtype int32: expected int64"):
        cache.query(np.zeros(2, dtype=np.int32), 0)
    with pytest.raises(InputError, match=r"slots has shape \[1\]: expected \[2\]"):
        cache.lookup(np.zeros(2, dtype=np.int64), np.zeros(1, dtype=np.int64))
    with pytest.raises(InputError, match=r"rows are float32 \[2\] but their target is uint8 \[2\]"):
        copy_rows(np.zeros((1, 2), np.uint8), None, np.zeros((1, 2), np.float32), None, 1, device=on_cpu())


ROWS, ONE = np.zeros((3, 2), np.float32), np.zeros(1, np.int64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ROWS[0], ONE, ROWS, ONE, 1), r"target has shape \[2\]: expected \[rows, dim\]"),
        ((ROWS, ONE, np.zeros((3, 4), np.float32)[:, ::2], ONE, 1), r"source \(3, 2\) is not contiguous"),
        ((ROWS, ONE.astype(np.int32), ROWS, ONE, 1), "target_rows has dtype int32: expected int64"),
        ((ROWS, ONE, ROWS, ONE, 2), r"target_rows has shape \[1\]: expected \[2 or more\]"),
        ((ROWS, ONE, ROWS, None, 4), "4 rows of source: expected 0 to 3"),
        ((ROWS, None, ROWS, ONE, -1), "-1 rows of target: expected 0 to 3"),
        ((ROWS, ONE + 3, ROWS, ONE, 1), "target_rows run from 3 to 3: expected -1 to 2"),
        ((ROWS, ONE, ROWS, ONE - 2, 1), "source_rows run from -2 to -2: expected -1 to 2"),
        (([[0]], ONE, ROWS, ONE, 1), "target is a list"),
    ],
)
def test_copies_of_wrong_rows_are_refused(on_cpu, arguments, message):
    with pytest.raises(InputError, match=message):
        copy_rows(*arguments, checked=True, device=on_cpu())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cache: cache.query(np.array([0, 3]), 5, checked=True), "ids run from 0 to 3: expected 0 to 2"),
        (lambda cache: cache.fetch(np.array([-1]), 5, keep_from=5, checked=True), "ids run from -1 to -1"),
        (lambda cache: cache.insert(np.array([1, 1]), 5, keep_from=5, checked=True), "ids repeat"),
        (lambda cache: cache.insert(np.array([0, 1]), 5, keep_from=5, checked=True), "1 ids are in the cache"),
        (lambda cache: cache.lookup(np.array([3]), ONE, checked=True), "ids run from 3 to 3: expected 0 to 2"),
        (lambda cache: cache.lookup(ONE, np.array([64]), checked=True), "slots run from 64 to 64: expected -1 to 63"),
        (lambda cache: cache.query(ONE, 3), "step is 3: expected at least 4, which was the last one"),
        (lambda cache: cache.fetch(ONE + 1, 5, keep_from=6), "keep_from is 6: expected at most the step, 5"),
    ],
)
def test_a_cache_refuses_ids_that_are_not_there_and_steps_that_would_lose_rows(on_cpu, call, message):
    cache = RowCache(np.zeros((3, 2), dtype=np.float32), 2, device=on_cpu())
    cache.fetch(ONE, 4, keep_from=4)
    with pytest.raises(InputError, match=message):
        call(cache)


def test_host_rows_must_be_contiguous_and_pinned(on_cpu):
    with pytest.raises(InputError, match=r"host rows \(3, 2\) is not contiguous"):
        RowCache(np.zeros((3, 4), np.float32)[:, ::2], 1, device=on_cpu())
    device = on_cpu()
    device.reaches = lambda rows: False
    with pytest.raises(InputError, match="host rows lies in memory that is not pinned: make it with pinned_rows"):
        RowCache(np.zeros((3, 2), np.float32), 1, device=device)
    with pytest.raises(InputError, match="unknown dtype 'bf16' of rows: expected one of float32, float16, uint16"):
        pinned_rows((3, 2), "bf16", device=device)


def test_a_flush_waits_for_the_device_before_and_after(on_cpu):
    host, waits = np.zeros((3, 2), np.float32), []
    cache = RowCache(host, 1, device=on_cpu())
    slots = cache.fetch(ONE + 1, 0, keep_from=0)
    cache.rows[slots] = 7
    cache.device.synchronize = lambda: waits.append(float(host[1, 0]))
    cache.flush()
    assert waits == [0, 7]

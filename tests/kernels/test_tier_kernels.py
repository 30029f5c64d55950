"""Cache and copy kernels, run on the CPU, against the NumPy reference cache; look-ups through it see current rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshard.kernels import reference as ref
from foreshard.kernels.tiers import RowCache, copy_rows
from foreshard.topologies.errors import InputError

SCHEDULES = st.fixed_dictionaries(
    {"seed": st.integers(0, 9), "threads": st.sampled_from([32, 64]), "max_grid": st.integers(1, 4)}
)


@given(
    sets=st.integers(1, 3),
    batches=st.lists(st.lists(st.integers(0, 150), max_size=60), min_size=1, max_size=6),
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

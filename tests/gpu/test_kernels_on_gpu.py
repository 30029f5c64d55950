"""The kernels on a real GPU: equal to the NumPy reference, deterministic, on torch's stream, sanitizer-clean.

What is exact on the CPU is exact here: sums, SGD, routing and codecs are compared bit for bit. (CuPy compiles with
-ftz=true, which would show in values below 1.2e-38 only; none are drawn.)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from foreshard import kernels
from foreshard.kernels import reference as ref
from foreshard.kernels.reference_codecs import CODECS
from foreshard.kernels.reference_update import LONG_SEGMENT
from foreshard.topologies.errors import InputError

pytestmark = pytest.mark.gpu

DIMS = (1, 3, 4, 10, 32, 64, 100, 128, 256, 1000, 1024)
FORMATS = ("float32", "float16", "uint16")


def make_case(rng, dims, rows, batch, longest):
    lengths = rng.integers(0, longest + 1, size=len(dims) * batch)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = (rng.random(offsets[-1]) ** 3 * rows).astype(np.int64)
    return ids, offsets, rng.normal(size=len(ids)).astype(np.float32)


def make_tables(rng, dims, rows, form):
    return [ref.rows_from_fp32(rng.normal(size=(rows, dim)).astype(np.float32), np.dtype(form)) for dim in dims]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("id_type", ["int32", "int64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_look_ups_of_tables_of_all_dims_in_one_launch(gpu, form, id_type, weighted):
    rng, cupy = np.random.default_rng(0), gpu.xp
    tables = make_tables(rng, DIMS, 1000, form)
    ids, offsets, weights = make_case(rng, DIMS, 1000, 257, 60)
    weights = weights if weighted else None
    group = kernels.table_group([cupy.asarray(table) for table in tables])
    for mode in ("sum", "mean"):
        factors = None if weights is None else cupy.asarray(weights)
        own = cupy.asarray(ids.astype(id_type)), cupy.asarray(offsets)
        got = kernels.pooled_lookup(group, *own, mode=mode, weights=factors, checked=True)
        expected = ref.pooled_tables(tables, range(len(DIMS)), ids, offsets, mode=mode, weights=weights)
        assert np.array_equal(cupy.asnumpy(got), expected)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dim", DIMS)
def test_sequences_and_their_sgd_update(gpu, form, dim):
    rng, cupy = np.random.default_rng(dim), gpu.xp
    table = make_tables(rng, [dim], 50, form)[0]
    ids = rng.integers(0, 50, 3 * LONG_SEGMENT)
    ids[: 2 * LONG_SEGMENT] = 7  # hot enough to be summed in chunks
    gradients, starts = rng.normal(size=(len(ids), dim)).astype(np.float32), cupy.asarray(np.array([0, len(ids)]))
    rows = cupy.asarray(table)
    group = kernels.table_group([rows])
    got = kernels.sequence_lookup(group, cupy.asarray(ids), starts)
    assert np.array_equal(cupy.asnumpy(got), ref.sequence_lookup(table, ids))
    optimizer = kernels.Sgd(learning_rate=0.1)
    kernels.update_sequence(group, optimizer, cupy.asarray(gradients), cupy.asarray(ids), starts)
    assert np.array_equal(cupy.asnumpy(rows), ref.update_rows(table, None, ids, gradients, optimizer)[0])


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_by_row_of_many_tables(gpu, weighted):
    rng, cupy = np.random.default_rng(3), gpu.xp
    tables = make_tables(rng, DIMS, 100, "float16")
    ids, offsets, weights = make_case(rng, DIMS, 100, 129, 20)
    weights = weights if weighted else None
    gradients = rng.normal(size=(129, sum(DIMS))).astype(np.float32)
    group = kernels.table_group([cupy.asarray(table) for table in tables])
    factors = None if weights is None else cupy.asarray(weights)
    own = cupy.asarray(gradients), cupy.asarray(ids), cupy.asarray(offsets)
    found = kernels.sum_pooled(group, *own, weights=factors)
    columns = np.cumsum([0, *DIMS])
    for table, sums in enumerate(found):
        span = offsets[table * 129 : (table + 1) * 129 + 1]
        mine = slice(span[0], span[-1])
        part = gradients[:, columns[table] : columns[table + 1]]
        per_id = ref.spread_gradients(part, span - span[0], weights=None if weights is None else weights[mine])
        segments = ref.segment(ids[mine])
        assert np.array_equal(cupy.asnumpy(sums.rows), segments.rows)
        assert np.array_equal(cupy.asnumpy(sums.sums), ref.sum_segments(segments, per_id))


@pytest.mark.parametrize("form", FORMATS)
def test_row_wise_adagrad_is_right_and_gives_the_same_bits_each_time(gpu, form):
    rng, cupy = np.random.default_rng(1), gpu.xp
    table = make_tables(rng, [96], 300, form)[0]
    ids, offsets, _ = make_case(rng, [96], 300, 512, 20)
    gradients = rng.normal(size=(512, 96)).astype(np.float32)
    optimizer = kernels.RowWiseAdagrad(learning_rate=0.1, replicas=2)
    results = []
    for _ in range(3):
        rows, state = cupy.asarray(table), cupy.zeros(300, dtype=np.float32)
        group = kernels.table_group([rows], momentum=[state])
        own = cupy.asarray(gradients), cupy.asarray(ids), cupy.asarray(offsets)
        kernels.update_pooled(group, optimizer, *own, mode="mean")
        results.append((cupy.asnumpy(rows), cupy.asnumpy(state)))
    per_id = ref.spread_gradients(gradients, offsets, mode="mean")
    expected, momentum = ref.update_rows(table, np.zeros(300, np.float32), ids, per_id, optimizer)
    np.testing.assert_allclose(results[0][1], momentum, rtol=2e-6)
    close = {"float32": 2e-6, "float16": 2e-3, "uint16": 2e-2}[form]
    np.testing.assert_allclose(ref.rows_to_fp32(results[0][0]), ref.rows_to_fp32(expected), close, close)
    assert len({rows.tobytes() + state.tobytes() for rows, state in results}) == 1


def test_routing(gpu):
    rng, cupy = np.random.default_rng(2), gpu.xp
    ids = rng.integers(-(2**63), 2**63 - 1, 100_000)
    owners, _ = kernels.find_owners(
        [kernels.FeatureRoute(members=range(48))], cupy.asarray(ids), cupy.asarray(np.array([0, len(ids)]))
    )
    assert np.array_equal(cupy.asnumpy(owners), ref.hash_part(ids, 48))
    for members in (48, 7000):
        targets = rng.integers(0, members, 100_000).astype(np.int32)
        got = kernels.bucketise(cupy.asarray(targets), members)
        assert np.array_equal(cupy.asnumpy(got.permutation), ref.bucketise(targets))
        assert np.array_equal(cupy.asnumpy(got.inverse), ref.inverse_permutation(ref.bucketise(targets)))
        assert np.array_equal(cupy.asnumpy(got.counts), ref.owner_counts(targets, members))
    few = rng.integers(0, 5000, 100_000)
    distinct, inverse = kernels.deduplicate(cupy.asarray(few))
    assert np.array_equal(cupy.asnumpy(distinct)[cupy.asnumpy(inverse)], few)
    assert np.array_equal(cupy.asnumpy(distinct), np.unique(few))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dim", [1, 5, 128, 260])
def test_codecs(gpu, codec, dim):
    rows = np.random.default_rng(3).normal(size=(100, dim)).astype(np.float32)
    encoded = kernels.encode(gpu.xp.asarray(rows), codec)
    expected = ref.encode(rows, codec)
    assert np.array_equal(gpu.xp.asnumpy(encoded).view(np.uint8), expected.view(np.uint8))
    assert np.array_equal(gpu.xp.asnumpy(kernels.decode(encoded, codec)), ref.decode(expected, codec))


def test_rows_in_pinned_host_memory_are_cached_and_come_back(gpu):
    cupy, rng = gpu.xp, np.random.default_rng(4)
    host = kernels.pinned_rows((500, 24), "float32")
    host[:] = plain = rng.normal(size=(500, 24)).astype(np.float32)
    plain = plain.copy()
    cache = kernels.RowCache(host, 3)
    for step in range(8):
        ids = np.unique(rng.integers(0, 500, 80))
        slots = cupy.asnumpy(cache.query(cupy.asarray(ids), step))
        missing = slots < 0
        slots[missing] = cupy.asnumpy(cache.fetch(cupy.asarray(ids[missing]), step, keep_from=step))
        got = cupy.asnumpy(cache.lookup(cupy.asarray(ids), cupy.asarray(slots)))
        assert np.array_equal(got, plain[ids])
        held = slots >= 0
        cache.rows[cupy.asarray(slots[held])] += 1
        cupy.cuda.get_current_stream().synchronize()
        host[ids[~held]] += 1
        plain[ids] += 1
    cache.flush()  # waits
    assert np.array_equal(host, plain)


def test_ordinary_host_rows_are_refused(gpu):
    with pytest.raises(InputError, match="host rows lies in memory that is not pinned"):
        kernels.RowCache(np.zeros((500, 24), dtype=np.float32), 3)


def test_torch_tensors_are_used_in_place_on_torchs_stream(gpu):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    weights = torch.randn(100, 16, device="cuda").bfloat16()
    before = weights.clone()
    group = kernels.table_group([weights])
    drawn, ids = torch.randint(1, 100, (64,), device="cuda"), torch.zeros(64, dtype=torch.int64, device="cuda")
    offsets = torch.arange(0, 65, 4, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)  # whoever does not wait for this stream reads zeros for ids
        ids.copy_(drawn)
        got = kernels.pooled_lookup(group, ids, offsets)
        wanted = torch.nn.functional.embedding_bag(ids, weights.float(), offsets[:-1], mode="sum")
        kernels.update_pooled(group, kernels.Sgd(learning_rate=1.0), torch.ones_like(got), ids, offsets)
    stream.synchronize()
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, wanted)
    assert not torch.equal(weights, before)


def test_ids_outside_their_table_are_named(gpu):
    cupy = gpu.xp
    group = kernels.table_group([cupy.zeros((3, 2), dtype=np.float32)])
    with pytest.raises(InputError, match="first id 3 of feature 0, at position 1"):
        kernels.pooled_lookup(group, cupy.asarray(np.array([0, 3])), cupy.asarray(np.array([0, 2])), checked=True)


@pytest.mark.parametrize("check", ["memcheck", "racecheck", "synccheck"])
def test_compute_sanitizer_finds_nothing(gpu, check):
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer (of the CUDA toolkit) is not on the path")
    if "FORESHARD_COMPUTE_SANITIZER" in os.environ:
        pytest.skip("runs under compute-sanitizer already")
    some = "routing or codecs or adagrad or sums_by_row or cached or (pooled and float16)"
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__, "-k", some]
    environment = {**os.environ, "FORESHARD_COMPUTE_SANITIZER": "1"}
    done = subprocess.run(
        [tool, "--tool", check, "--error-exitcode", "9", *tests],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]

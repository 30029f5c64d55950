"""The benchmark says "not measured" where there is no GPU, and its bytes and cases are what its text says."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from foreshard.kernels import bench
from foreshard.kernels.cupy_device import cupy_device
from foreshard.kernels.tables import table_group


def test_without_a_gpu_every_row_says_not_measured(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    cupy_device.cache_clear()
    bench.main()
    out, err = capsys.readouterr()
    lines = out.splitlines()[2:]
    assert len(lines) == 2 * len(bench.CASES)
    assert [line.count(bench.NOT_MEASURED) for line in lines] == [5, 6] * len(bench.CASES)
    assert "foreshard[gpu]" in err


@pytest.mark.parametrize("case", bench.CASES, ids=str)
def test_tables_are_far_larger_than_l2_and_fit_into_a_gpu(case):
    table = 4 * case.dim * case.rows
    assert 2**30 <= table <= 8 * 2**30
    assert case.bags * case.dim * 4 <= 2**31
    assert case.bags * case.pooling >= 2**18


@pytest.mark.parametrize("ids", ["uniform", "zipf 1.15"])
def test_bytes_and_fractions_of_a_measured_case_by_hand(monkeypatch, on_cpu, ids):
    monkeypatch.setattr(bench, "_TABLE_BYTES", 1 << 12)  # 256 rows of 16 bytes
    monkeypatch.setattr(bench, "_LOOKUPS", 200)
    ran = []
    monkeypatch.setattr(bench, "_seconds", lambda device, work: ran.append(work()) or 1e-3)
    monkeypatch.setattr(bench, "table_group", lambda *args, **more: table_group(*args, **more, device=on_cpu()))
    case = bench.Case(dim=4, pooling=10, ids=ids)
    distinct = len(set(bench._draw_ids(on_cpu(), case).tolist()))
    forward, backward = bench._measured(on_cpu(), case, copy=1e7)
    moved = 200 * (16 + 8) + 20 * 16 + 21 * 8
    share = moved * 1e3 / 1e7
    assert forward[4:] == (f"{moved / 1e6:.0f}", "1000", f"{moved / 1e6:.0f}", f"{share:.2f}", "not measured", "")
    updated = 200 * 8 + 21 * 8 + 20 * 16 + distinct * 2 * (16 + 4)
    assert backward[7:] == (f"{updated * 1e3 / 1e7:.2f}", "not measured", "not measured")
    assert len(ran) == 2


def test_torch_is_timed_with_sparse_and_with_dense_gradients_and_divided_by_ours(monkeypatch, on_cpu):
    """torch on the CPU stands in for its GPU: what runs is right, the seconds are given."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench, "_TABLE_BYTES", 1 << 12)
    monkeypatch.setattr(bench, "_LOOKUPS", 200)
    monkeypatch.setattr(bench, "table_group", lambda *args, **more: table_group(*args, **more, device=on_cpu()))
    seconds, ran = iter([1.0, 2.0, 3.0, 5.0, 9.0]), []
    monkeypatch.setattr(bench, "_seconds", lambda device, work: ran.append(work()) or next(seconds))
    forward, backward = bench._measured(on_cpu(), bench.Case(dim=4, pooling=10, ids="uniform"), copy=1e7)
    assert forward[8:] == ("3.00", "")
    assert backward[8:] == ("2.50", "4.50")
    assert np.array_equal(ran[0], np.zeros((20, 4)))  # before anybody's update
    assert len(ran) == 5


def test_torchs_backward_steps_the_same_rows_with_sparse_and_with_dense_gradients():
    torch = pytest.importorskip("torch")
    results = []
    for sparse in (True, False):
        weight = torch.nn.Parameter(torch.zeros(6, 4))
        out = torch.nn.functional.embedding_bag(torch.tensor([1, 4, 4]), weight, torch.tensor([0, 1]), sparse=sparse)
        bench._torch_backward(torch, weight, out, torch.ones(2, 4))()
        assert weight.grad is None
        results.append(weight.detach())
    assert torch.equal(results[0], results[1])
    assert results[0].any(dim=1).tolist() == [False, True, False, False, True, False]


def test_a_case_that_does_not_fit_into_memory_is_not_measured(monkeypatch, capsys):
    freed = []
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append(True))
    device = SimpleNamespace(xp=SimpleNamespace(get_default_memory_pool=lambda: pool))

    def too_large(device, case, copy):
        yield "a row"
        raise MemoryError("out of memory allocating 8,589,934,592 bytes")

    monkeypatch.setattr(bench, "_measured", too_large)
    rows = bench._tried(device, bench.CASES[0], 1.0)
    assert rows == list(bench.rows_of(bench.CASES[0]))
    assert "out of memory allocating" in capsys.readouterr().err
    assert freed


def test_zipf_ids_of_the_benchmark_follow_the_law(on_cpu):
    case = bench.Case(dim=1024, pooling=100, ids="zipf 1.15")
    ids = bench._draw_ids(on_cpu(), case)
    _, counts = np.unique(ids, return_counts=True)
    top = np.sort(counts)[::-1][:3] / len(ids)
    power = 1 - 1.15  # mass of the k-th rank: the integral of x^-1.15 from k to k + 1, over that from 1 to rows + 1
    expected = np.diff(np.arange(1, 5) ** power) / ((case.rows + 1) ** power - 1)
    np.testing.assert_allclose(top, expected, rtol=0.05)
    assert ids.min() >= 0
    assert ids.max() < case.rows

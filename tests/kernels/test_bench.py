"""The benchmark says "not measured" where there is no GPU, and its bytes and cases are what its text says."""

from __future__ import annotations

import sys

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
    assert all(line.count(bench.NOT_MEASURED) == 5 for line in lines)
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
    moved = 200 * (16 + 8) + 20 * (16 + 8)
    assert forward[4:] == (
        f"{moved / 1e6:.0f}",
        "1000",
        f"{moved / 1e6:.0f}",
        f"{moved * 1e3 / 1e7:.2f}",
        "not measured",
    )
    updated = 200 * 16 + distinct * 2 * (16 + 4)
    assert backward[7] == f"{updated * 1e3 / 1e7:.2f}"
    assert len(ran) == 2


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

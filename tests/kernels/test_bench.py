"""The benchmark says "not measured" where there is no GPU, and its bytes and cases are what its text says."""

from __future__ import annotations

import sys

import pytest

from foreshard.kernels import bench
from foreshard.kernels.cupy_device import cupy_device


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

"""Launches of kernels with one mistake each; test_sanitizers.py runs them in processes that must not survive."""

from __future__ import annotations

import numpy as np


def test_reads_behind_the_end(on_cpu):
    on_cpu().launch("reads_behind_the_end", 1, (np.zeros(32, np.int32), np.zeros(32, np.int32)), threads=32)


def test_loads_unaligned(on_cpu):
    on_cpu().launch("loads_unaligned", 1, (np.zeros(9, np.int32)[1:], np.zeros(1, np.int64)), threads=1)


def test_overruns_shared_memory(on_cpu):
    on_cpu().launch("overruns_shared_memory", 1, (np.zeros(32, np.int32),), threads=32, shared_bytes=4 * 31)

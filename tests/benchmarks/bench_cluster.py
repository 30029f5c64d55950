"""Time to compile 16,384 ranks and to load their links."""

from __future__ import annotations

from typing import Any

import numpy as np

from foreshard.topologies.presets import load_preset

NODES = 2048


def test_compile(benchmark: Any) -> None:
    """2,048 nodes of p5 from their preset."""
    benchmark.pedantic(load_preset, args=("p5.48xlarge", NODES), rounds=5)


def test_loads_of_four_million_flows(benchmark: Any) -> None:
    """Random pairs, one by one."""
    cluster = load_preset("p5.48xlarge", NODES)
    src, dst = np.random.default_rng(0).integers(0, cluster.size, (2, 4_000_000))
    benchmark.pedantic(cluster.loads, args=(src, dst, np.ones(len(src))), rounds=3, warmup_rounds=1)


def test_loads_of_all_pairs(benchmark: Any) -> None:
    """268 million pairs as an outer product."""
    cluster = load_preset("p5.48xlarge", NODES)
    ones = np.ones(cluster.size)
    benchmark.pedantic(cluster.outer_loads, args=(np.arange(cluster.size), ones, ones), rounds=3, warmup_rounds=1)

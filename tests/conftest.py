"""Fixtures shared by all rooms' tests: tiny clusters whose answers can be computed by hand, and real specimens."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import ClusterSpec, Gpu, Link, NodeGroup, NodeSpec

settings.register_profile(
    "foreshard", max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("foreshard")


@pytest.fixture(scope="session")
def specimens() -> Path:
    """Folder of real inputs written by other people; tests that need it skip where it is not at hand."""
    folder = os.environ.get("FORESHARD_SPECIMENS")
    if not folder:
        pytest.skip("FORESHARD_SPECIMENS is not set: no folder of real specimens here")
    return Path(folder)


def tiny_gpu(hbm_bytes: float = 1e9) -> Gpu:
    """A GPU with round figures: 1 GB of memory, 1 TB/s, 1 TFLOP/s."""
    return Gpu(
        name="tiny",
        architecture="hopper",
        hbm_bytes=hbm_bytes,
        hbm_bytes_per_s=1e12,
        l2_bytes=0.0,
        flops={"fp32": 1e12, "bf16": 1e12, "fp16": 1e12},
        source="made up for tests",
    )


@pytest.fixture(scope="session")
def mesh() -> Callable[..., Cluster]:
    """Builds one node of `ranks` GPUs, each pair joined by its own links of `bandwidth` B/s, without latency."""

    def build(ranks: int, bandwidth: float = 1e9) -> Cluster:
        links = tuple(
            Link(
                src=f"gpu{src}",
                dst=f"gpu{dst}",
                bandwidth=bandwidth,
                usable=bandwidth,
                latency_s=0.0,
                kind="nvlink",
                source="made up for tests",
            )
            for src in range(ranks)
            for dst in range(ranks)
            if src != dst
        )
        node = NodeSpec(name="tiny", gpus=(tiny_gpu(),) * ranks, links=links, host_memory_bytes=1e9)
        return Cluster(ClusterSpec(name="mesh", groups=(NodeGroup(node=node, nodes=1),)))

    return build

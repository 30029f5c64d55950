"""A pool of four gloo processes that is started once and runs many scenarios."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

from foreshard.topologies.machine import ClusterSpec, Gpu, Link, NodeGroup, NodeSpec

WORKERS = 4
_SECONDS = 120.0  # far beyond any job here; a worker that hangs fails its test


def _cpu_rank():
    return Gpu(
        name="tiny", architecture="hopper", hbm_bytes=1e9, hbm_bytes_per_s=1e12, l2_bytes=0.0,
        flops={"fp32": 1e12, "bf16": 1e12, "fp16": 1e12}, source="made up for tests",
    )  # fmt: skip


def _links(ranks):
    ends = [(f"gpu{a}", f"gpu{b}") for a in range(ranks) for b in range(ranks) if a != b]
    ends += [(f"gpu{a}", "nic0") for a in range(ranks)] + [("nic0", f"gpu{a}") for a in range(ranks)]
    for src, dst in [*ends, ("nic0", "^leaf"), ("^leaf", "nic0")]:
        kind = "network" if "^leaf" in (src, dst) else "pcie"
        yield Link(src=src, dst=dst, bandwidth=1e9, usable=1e9, latency_s=0.0, kind=kind, source="made up for tests")


@pytest.fixture(scope="session")
def cluster_of():
    """Builds a cluster of `nodes` nodes of `ranks` ranks each."""

    def build(nodes, ranks):
        node = NodeSpec(name="tiny", gpus=(_cpu_rank(),) * ranks, links=tuple(_links(ranks)), host_memory_bytes=1e9)
        return ClusterSpec(name="tiny", groups=(NodeGroup(node=node, nodes=nodes),))

    return build


class Pool:
    """Processes that wait for jobs; a job is what `worker.run` takes."""

    def __init__(self, folder):
        self._folder, self._jobs = folder, 0
        key = secrets.token_hex(16)
        script = Path(__file__).with_name("worker.py")
        environment = {**os.environ, "POOL_KEY": key, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with Listener(str(folder / "pool"), authkey=key.encode()) as listener:
            self._processes = [
                subprocess.Popen([sys.executable, str(script), str(rank), str(folder / "pool")], env=environment)
                for rank in range(WORKERS)
            ]
            accepted = [listener.accept() for _ in range(WORKERS)]
        self._connections = [one for _, one in sorted((one.recv(), one) for one in accepted)]

    def run(self, scenario, cluster, settings, steps=1):
        """What every rank has after training; fails with every rank's traceback."""
        self._jobs += 1
        world_size = sum(group.nodes * len(group.node.gpus) for group in cluster.groups)
        job = {
            "scenario": scenario, "cluster": cluster, "settings": settings, "steps": steps,
            "world_size": world_size, "store": str(self._folder / f"store{self._jobs}"),
        }  # fmt: skip
        for connection in self._connections:
            connection.send(job)
        answers = [self._answer(connection) for connection in self._connections]
        failed = [text for good, text in answers if not good]
        if failed:
            pytest.fail("\n".join(failed))
        return [result for _, result in answers[:world_size]]

    def _answer(self, connection):
        if not connection.poll(_SECONDS):
            self.close()
            pytest.fail("a worker hangs")
        return connection.recv()

    def close(self):
        for connection in self._connections:
            connection.send(None)
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def pool(tmp_path_factory):
    """Four processes, started once."""
    pool = Pool(tmp_path_factory.mktemp("pool"))
    yield pool
    pool.close()

"""A pool of four gloo processes that is started once and runs many scenarios."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from foreshard.simulator.job.layout import Layout, resolve_layout
from foreshard.simulator.job.scenario import ClusterChoice, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, Dense, Table, Workload
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


def _cluster(nodes, ranks):
    node = NodeSpec(name="tiny", gpus=(_cpu_rank(),) * ranks, links=tuple(_links(ranks)), host_memory_bytes=1e9)
    return ClusterSpec(name="tiny", groups=(NodeGroup(node=node, nodes=nodes),))


# -- jobs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A scenario and the machine that it runs on."""

    scenario: Scenario
    cluster: ClusterSpec

    def __repr__(self):
        nodes = ", ".join(f"{group.nodes} nodes of {len(group.node.gpus)}" for group in self.cluster.groups)
        return f"Job({nodes}: {self.scenario})"


SHAPES = ((1, 2), (2, 1), (1, 3), (2, 2), (1, 4), (4, 1))  # nodes, ranks of a node
ANYWHERE = ("table_wise", "column_wise", "row_wise", "data_parallel")
ON_NODES = ("table_row_wise", "table_column_wise", "grid_shard")
_DENSE = (
    Dense(layers=((2, 3), (6, 1))),
    Dense(layers=((3, 2), (5, 2, 5), (7, 1))),
    Dense(layers=((7, 3),)),
    Dense(forward_flops_per_sample=60.0, parameters=40, kernels=4),
    Dense(),
)


def _layouts(draw, ranks):
    """Global sharding, equal groups either way round, or groups that name their ranks."""
    how = draw(st.sampled_from(["world", "even", "named", "named"]))
    if how == "world":
        return Layout()
    sync = draw(st.sampled_from(["weights", "gradients", "fully_sharded"]))
    interval = draw(st.integers(1, 2)) if sync == "weights" else 1
    if how == "even":
        size = draw(st.sampled_from([size for size in range(1, ranks) if ranks % size == 0]))
        placement = draw(st.sampled_from(["contiguous", "interleaved"]))
        return Layout(sharding_group_size=size, placement=placement, sync=sync, sync_interval=interval)
    order, cut = draw(st.permutations(range(ranks))), draw(st.integers(1, ranks - 1))
    groups = (tuple(order[:cut]), tuple(order[cut:]))
    if len(groups[0]) != len(groups[1]) and sync == "fully_sharded":
        sync = "gradients"
    return Layout(groups=groups, sync=sync, sync_interval=interval if sync == "weights" else 1)


def _sharding(draw, kind, rows, dim, shapes):
    """Everything that a plan can say about one table of that kind in groups of these shapes."""
    columns = None
    if kind in ("column_wise", "table_column_wise", "grid_shard"):
        columns = draw(st.integers(1, min(dim, 3)))
    cut = kind in ("row_wise", "table_row_wise", "grid_shard")
    owner = draw(st.sampled_from(["range", "hash"])) if cut else "range"
    splits = ranks = None
    parts = {size if kind == "row_wise" else local for size, local in shapes}
    if cut and owner == "range" and len(parts) == 1 and draw(st.booleans()):
        ends = sorted(draw(st.lists(st.integers(0, rows), min_size=max(parts) - 1, max_size=max(parts) - 1)))
        splits = tuple(np.diff([0, *ends, rows]).tolist())
    if kind == "row_wise" and splits is None and draw(st.booleans()):
        smallest = min(size for size, _ in shapes)
        ranks = tuple(draw(st.permutations(range(smallest)))[: draw(st.integers(1, smallest))])
    return TableSharding(sharding=kind, owner=owner, row_splits=splits, ranks=ranks, column_shards=columns)


def _table(draw, name, *, exact, by_id):
    features = draw(st.integers(1, 2))
    pooling = draw(st.sampled_from(["none"] if by_id else ["sum", "mean", "sum", "mean", "none"]))
    factors = (0.5, 1.0, 1.5) if exact and pooling == "mean" else (0.5, 1.0, 2.5)  # halves are exact, thirds are not
    return Table(
        name=name,
        num_embeddings=draw(st.integers(1, 40)),
        embedding_dim=draw(st.integers(1, 9)),
        pooling_factor=tuple(draw(st.sampled_from(factors)) for _ in range(features)),
        pooling=pooling,
        data_type="fp32" if exact else draw(st.sampled_from(["fp32", "fp32", "fp32", "fp16", "bf16"])),
        feature_names=tuple(f"{name}.f{place}" for place in range(features)),
        access=Access(zipf=draw(st.sampled_from([0.0, 1.2]))),
    )


@st.composite
def _jobs(draw, exact):
    nodes, local_ranks = draw(st.sampled_from(SHAPES))
    world = nodes * local_ranks
    layout = _layouts(draw, world)
    shapes = resolve_layout(layout, world).group_shapes(np.repeat(np.arange(nodes), local_ranks))
    kinds = ANYWHERE + (ON_NODES if all(local >= 2 and size % local == 0 for size, local in shapes) else ())
    tables = tuple(_table(draw, f"t{place}", exact=exact, by_id=False) for place in range(draw(st.integers(1, 4))))
    plan = [
        (one.name, _sharding(draw, draw(st.sampled_from(kinds)), one.num_embeddings, one.embedding_dim, shapes))
        for one in tables
    ]
    scenario = Scenario(
        cluster=ClusterChoice(preset="p5.48xlarge"),
        workload=Workload(batch_size=draw(st.integers(1, 5)), tables=tables, dense=draw(st.sampled_from(_DENSE))),
        plan=Plan(tables=tuple(plan)),
        layout=layout,
        execution=Execution(
            pipeline=draw(st.sampled_from(["base", "sparse_dist"])),
            optimizer="sgd" if exact else draw(st.sampled_from(["sgd", "rowwise_adagrad", "adagrad", "adam"])),
            routing="sampled",
            seed=draw(st.integers(0, 1000)),
            dedup=draw(st.booleans()),
        ),
    )
    return Job(scenario=scenario, cluster=_cluster(nodes, local_ranks))


@pytest.fixture(scope="session")
def jobs():
    """The Hypothesis strategy for jobs on two to four ranks."""
    return _jobs


@pytest.fixture(scope="session")
def all_kinds():
    """Builds a job on two nodes of two ranks with a pooled and a sequence table of every sharding kind."""

    def build(**execution):
        tables, plan = [], []
        for place, kind in enumerate((*ANYWHERE, *ON_NODES)):
            for pooling in ("sum", "none"):
                name = f"{kind}.{pooling}"
                tables.append(
                    Table(name=name, num_embeddings=50 + place, embedding_dim=8, pooling_factor=2.5, pooling=pooling,
                          feature_names=(f"{name}.a", f"{name}.b"))
                )  # fmt: skip
                columns = 2 if kind in ("column_wise", "table_column_wise", "grid_shard") else None
                plan.append((name, TableSharding(sharding=kind, column_shards=columns)))
        scenario = Scenario(
            cluster=ClusterChoice(preset="p5.48xlarge"),
            workload=Workload(batch_size=4, tables=tuple(tables), dense=Dense(layers=((3, 4), (60, 8, 1)))),
            plan=Plan(tables=tuple(plan)),
            execution=Execution(routing="sampled", **execution),
        )
        return Job(scenario=scenario, cluster=_cluster(2, 2))

    return build


# -- processes ---------------------------------------------------------------------------------------------------


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

    def run(self, scenario, cluster, settings, steps=1, *, kernels=False):
        """What every rank has after training, with torch or the CUDA `kernels`; fails with every rank's traceback."""
        self._jobs += 1
        world_size = sum(group.nodes * len(group.node.gpus) for group in cluster.groups)
        job = {
            "scenario": scenario, "cluster": cluster, "settings": settings, "steps": steps,
            "world_size": world_size, "kernels": kernels, "store": str(self._folder / f"store{self._jobs}"),
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


@pytest.fixture(scope="session")
def cluster_of():
    """Builds a cluster of so many nodes of so many ranks."""
    return _cluster

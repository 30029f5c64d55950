"""One rank that trains the same scenario twice, with our runner and with TorchRec, and writes what came of it."""

import os
import pickle
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import tomli_w
import torch
import torch.distributed as dist

from foreshard.calibration.judge.job import Job
from foreshard.calibration.judge.recording import simulated
from foreshard.calibration.launch.place import Place
from foreshard.calibration.launch.world import World
from foreshard.calibration.runner.interpreter import StepRunner
from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.job.scenario import ClusterChoice, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Dense, Table, Workload
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import parse_cluster

STEPS = 5
SETTINGS = RunSettings(batches=1)  # the recorded step then has the batch that is simulated, whatever the pipeline


class Unrecorded:
    """A recorder that keeps nothing."""

    def phase(self, name):
        pass

    def step(self, number):
        pass

    def compute(self, index):
        return nullcontext()

    def collective(self, index, issue, *, sent_bytes=None, received_bytes=None):
        return issue()


def cluster_of(nodes, local):
    host = {
        "schema": 1, "name": "hosts", "cpu": "x86-avx2-core", "backend": "gloo", "nodes": nodes,
        "node": {
            "ranks": local, "cores": local, "memory": "ddr4-3200-x2", "host_memory": "16 GiB",
            "loopback": "tcp-loopback", "nic": "ethernet-1g", "source": "made up for tests",
        },
        "fabric": {"kind": "single_switch", "source": "made up for tests"},
    }  # fmt: skip
    return Cluster(parse_cluster(tomli_w.dumps(host), where="test"))


def scenario_of(plan, pipeline, optimizer):
    dim = 256 if plan == "grid_shard" else 64
    tables = tuple(
        Table(name=f"t{i}", num_embeddings=1000 + i, embedding_dim=dim, pooling_factor=10.0, feature_names=(f"f{i}",))
        for i in range(8)
    )
    shards = {"column_shards": 2} if plan in ("column_wise", "grid_shard") else {}
    kinds = [
        TableSharding(sharding=("table_wise" if i < 4 else "row_wise") if plan == "mixed" else plan, **shards)
        for i in range(8)
    ]
    return Scenario(
        cluster=ClusterChoice(preset="cpu-host"),
        workload=Workload(batch_size=128, tables=tables, dense=Dense(layers=((13, 64, 32), (8 * dim + 32, 64, 1)))),
        plan=Plan(tables=tuple(zip((table.name for table in tables), kinds, strict=True))),
        execution=Execution(optimizer=optimizer, routing="sampled", pipeline=pipeline),
    )


def apart(runner, job):
    """The largest difference of any weight, and how many blocks were compared."""
    ours = [(held, {int(row): place for place, row in enumerate(held.rows)}) for held in runner.held_rows()]
    worst, blocks = 0.0, 0
    for shard in job.shards():
        for held, place_of in ours:
            if held.table == shard.table and held.columns.start == shard.column and shard.row in place_of:
                first = place_of[shard.row]
                mine = held.weights[first : first + len(shard.values)]
                worst, blocks = max(worst, float(np.abs(mine - shard.values).max())), blocks + 1
    return worst, blocks


def main():
    plan, pipeline, optimizer, nodes, folder = sys.argv[1:]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = world_size // int(nodes)
    os.environ.update(LOCAL_WORLD_SIZE=str(local), LOCAL_RANK=str(rank % local))  # nodes of TorchRec's topology
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world_size)
    world = World(Place.from_environment(), store, timeout_s=60.0, backend="gloo")
    prediction = Prediction(scenario_of(plan, pipeline, optimizer), cluster_of(int(nodes), local))
    runner = StepRunner(prediction, world, Unrecorded(), SETTINGS)
    ours = runner.run(STEPS, 0)
    job = Job(prediction, rank, SETTINGS)
    theirs = job.train(STEPS)
    rows_apart, shards = apart(runner, job)
    found = {
        "ours": ours.losses, "theirs": theirs.losses, "issued": theirs.issued,
        "simulated": simulated(runner.program, rank), "rows_apart": rows_apart, "shards": shards,
    }  # fmt: skip
    (Path(folder) / f"rank{rank}").write_bytes(pickle.dumps(found))
    world.close()


if __name__ == "__main__":
    main()

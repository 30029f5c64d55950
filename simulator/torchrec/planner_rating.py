"""TorchRec's planner applied to a whole plan: the times and bytes of every rank of a sharding group, and its rating."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.scenario import Comms, Execution
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import Workload
from foreshard.simulator.torchrec.planner_estimate import (
    PlannerShard,
    PlannerTopology,
    planner_budget,
    shard_hbm,
    shard_perf,
)

__all__ = ["TERMS", "PlannerEstimate", "planner_estimate"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TERMS = ("fwd_compute", "fwd_comms", "bwd_compute", "bwd_comms", "prefetch", "input_dist")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlannerEstimate:
    """What TorchRec's planner says of a plan, per position of one sharding group; it knows no replicas.

    `seconds` [terms, positions] in the order of `TERMS`; `hbm_bytes` [positions] of shards with their buffers;
    `budget_bytes` of HBM that the planner leaves to shards after its default reservation.
    """

    topology: PlannerTopology
    seconds: FloatArray
    hbm_bytes: FloatArray
    budget_bytes: float

    @property
    def total_s(self) -> FloatArray:
        """The planner's sum for each position in seconds, [positions]; ids' exchange (input_dist) is left out of it."""
        return np.asarray(self.seconds[:-1].sum(axis=0))

    @property
    def rating_s(self) -> float:
        """What the planner compares plans by: the largest sum of a rank, in seconds."""
        return float(self.total_s.max())

    @property
    def input_dist_s(self) -> float:
        """The largest input_dist of a rank in seconds, which the planner computes and does not count."""
        return float(self.seconds[-1].max())

    @property
    def fits(self) -> bool:
        """Whether the planner would find room for every shard."""
        return bool(self.hbm_bytes.max() <= self.budget_bytes)

    def to_dict(self) -> dict[str, object]:
        """The estimate of the slowest position as JSON values: seconds and bytes."""
        slowest = int(np.argmax(self.total_s))
        return {
            "rating_s": self.rating_s,
            "slowest_position": slowest,
            "terms_s": {name: float(value) for name, value in zip(TERMS, self.seconds[:, slowest], strict=True)},
            "input_dist_s": self.input_dist_s,
            "mean_s": float(self.total_s.mean()),
            "max_hbm_bytes": float(self.hbm_bytes.max()),
            "budget_bytes": self.budget_bytes,
            "fits": self.fits,
        }


def planner_estimate(
    workload: Workload, sharded: tuple[ShardedTable, ...], comms: Comms, execution: Execution, topology: PlannerTopology
) -> PlannerEstimate:
    """Return the planner's estimate of a resolved plan for one sharding group of `topology.world_size` ranks."""
    seconds = np.zeros((len(TERMS), topology.world_size))
    hbm = np.zeros(topology.world_size)
    for table in sharded:
        for shard, positions in _shards(table, topology.world_size):
            perf = shard_perf(shard, workload.batch_size, comms, topology)
            terms = [getattr(perf, f"{name}_s") for name in TERMS]
            count = np.bincount(positions, minlength=topology.world_size)
            seconds += np.outer(terms, count)
            hbm += count * shard_hbm(shard, workload.batch_size, execution.optimizer, execution.pipeline, topology)
    budget = planner_budget(workload.tables, 4.0 * workload.dense.num_parameters, workload.batch_size, topology)
    return PlannerEstimate(topology=topology, seconds=seconds, hbm_bytes=hbm, budget_bytes=budget)


def _shards(table: ShardedTable, world_size: int) -> Iterator[tuple[PlannerShard, IntArray]]:
    """Shards of equal shape once, each with the positions of their owners."""
    if table.sharding == "data_parallel":
        whole = (table.table.num_embeddings, table.table.embedding_dim)
        yield _shard(table, *whole), np.arange(world_size)
        return
    if table.owners.size == 1:
        yield _shard(table, int(table.row_bounds[-1]), int(table.col_bounds[-1])), table.owners.ravel()
        return
    rows = np.broadcast_to(np.diff(table.row_bounds), table.owners.shape)
    columns = np.broadcast_to(np.diff(table.col_bounds)[:, None], table.owners.shape)
    shapes, which = np.unique(np.stack([rows.ravel(), columns.ravel()]), axis=1, return_inverse=True)
    for index, (height, width) in enumerate(shapes.T):
        yield _shard(table, int(height), int(width)), table.owners.ravel()[which.ravel() == index]


def _shard(table: ShardedTable, rows: int, columns: int) -> PlannerShard:
    kernel = None if table.compute_kernel == "fused" else table.compute_kernel
    return PlannerShard(table=table.table, sharding=table.sharding, rows=rows, columns=columns, kernel=kernel)

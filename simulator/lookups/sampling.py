"""Batches of ids drawn from the tables' access distributions, and the exact demand of such a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.ids.access import Distribution
from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.demand import Demand
from foreshard.simulator.job.layout import ResolvedLayout
from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import Workload
from foreshard.simulator.lookups.exact_demand import exact_demand
from foreshard.simulator.lookups.rank_batches import RankBatches

__all__ = ["SampledBatches", "sample_batch", "sampled_demand"]

IntArray = NDArray[np.int64]


class SampledBatches(RankBatches):
    """One batch for each rank, drawn when asked for; rank r's batch depends on the seed, the step and r alone.

    Its random stream is child `step` of child r of `numpy.random.SeedSequence(seed)`, so neither the number of ranks
    nor the order in which they are asked for changes it.
    """

    def __init__(self, workload: Workload, world_size: int, seed: int = 0, step: int = 0) -> None:
        self._workload = workload
        super().__init__(world_size)
        self._seed = seed
        self._step = step

    def of_rank(self, rank: int) -> JaggedBatch:
        """The batch drawn for one rank."""
        return sample_batch(self._workload, np.random.SeedSequence(self._seed, spawn_key=(rank, self._step)))


def sample_batch(workload: Workload, seed: np.random.SeedSequence) -> JaggedBatch:
    """Return one rank's batch: every feature has its own stream of ids, spawned from `seed`.

    A sample has floor(p) or floor(p) + 1 ids of a feature with pooling factor p, so that their mean is p. Weights of a
    weighted workload are 1.
    """
    features, lengths, values = [], [], []
    streams = iter(seed.spawn(sum(len(table.features) for table in workload.tables)))
    for table in workload.tables:
        distribution = Distribution.of(table)
        for feature, pooling_factor in zip(table.features, table.pooling_factors, strict=True):
            rng = np.random.default_rng(next(streams))
            features.append(feature)
            lengths.append(_lengths(pooling_factor, workload.batch_size, rng))
            values.append(distribution.sample(rng, int(lengths[-1].sum())))
    ids = np.concatenate(values)
    weights = np.ones(len(ids)) if workload.weighted else None
    return JaggedBatch(features=tuple(features), lengths=np.stack(lengths), values=ids, weights=weights)


def _lengths(pooling_factor: float, samples: int, rng: np.random.Generator) -> IntArray:
    whole = int(pooling_factor)
    return whole + (rng.random(samples) < pooling_factor - whole).astype(np.int64)


def sampled_demand(
    workload: Workload,
    sharded: tuple[ShardedTable, ...],
    layout: ResolvedLayout,
    node_of: IntArray,
    *,
    seed: int = 0,
    step: int = 0,
    optimizer: Optimizer = "rowwise_adagrad",
    dedup: bool = False,
) -> Demand:
    """Return the exact demand of one step with drawn batches, counted in ids, rows and elements."""
    batches = SampledBatches(workload, layout.world_size, seed, step)
    return exact_demand(workload, sharded, layout, node_of, batches, optimizer=optimizer, dedup=dedup)

"""What a step says about its plan: how uneven the ranks are, which tables make them so, and what replicas cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.demand import Demand
from foreshard.simulator.job.handed import given, received
from foreshard.simulator.job.layout import Placement, Sync
from foreshard.simulator.job.trace import StepTrace
from foreshard.simulator.lookups.skew import HotOwner

__all__ = ["HotTable", "Imbalance", "PlacementReport", "SyncReport", "hot_tables", "imbalance"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Imbalance:
    """How uneven one quantity is over the ranks: the largest, where it is, the mean, and largest over mean."""

    quantity: str
    unit: str
    max: float
    mean: float
    rank: int

    @property
    def factor(self) -> float:
        """Largest over mean; 1 where all ranks are equal or there is nothing."""
        return self.max / self.mean if self.mean else 1.0


def imbalance(demand: Demand, trace: StepTrace | None, memory_bytes: FloatArray) -> tuple[Imbalance, ...]:
    """Return the unevenness of lookups, exchanged ids and vectors, compute time and memory over the ranks."""
    ranks = demand.world_size
    lookups, ids, vectors = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    for family in demand.families:
        lookups += family.local.lookups
        ids += received(family.ids)
        vectors += given(family.output[0])
    found = [
        _imbalance("lookups", "rows", lookups + demand.data_parallel.lookups),
        _imbalance("ids received", "ids", ids),
        _imbalance("vectors returned", "elements", vectors),
        _imbalance("memory", "bytes", memory_bytes),
    ]
    if trace is not None:
        found.insert(3, _imbalance("compute", "s", _compute_seconds(trace)))
    return tuple(found)


def _imbalance(quantity: str, unit: str, values: FloatArray) -> Imbalance:
    rank = int(np.argmax(values))
    return Imbalance(quantity=quantity, unit=unit, max=float(values[rank]), mean=float(values.mean()), rank=rank)


def _compute_seconds(trace: StepTrace) -> FloatArray:
    """Seconds of all operations on the compute stream, [ranks]."""
    rows = [index for index, op in enumerate(trace.ops) if op.stream == "compute"]
    return np.asarray((trace.end_s[rows] - trace.start_s[rows]).sum(axis=0))


@dataclass(frozen=True, kw_only=True, slots=True)
class HotTable:
    """A table whose busiest shard gets more than its share of ids, on `rank` (and its peers in other replicas).

    `factor` is the shard's ids over an equal share; `excess` the ids per sample above it. With `distinct` ranks send
    each id of their batch once, and such are counted.
    """

    table: str
    rank: int
    factor: float
    share: float
    excess: float
    distinct: bool = False


def hot_tables(hot: tuple[HotOwner, ...], members: NDArray[np.int64], least: float = 1.05) -> tuple[HotTable, ...]:
    """Return the hot shards as tables and ranks; `members` are the ranks of a sharding group by position."""
    return tuple(
        HotTable(
            table=item.table,
            rank=int(members[item.position]),
            factor=item.factor,
            share=item.share,
            excess=item.excess,
            distinct=item.distinct,
        )
        for item in hot
        if item.factor >= least
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncReport:
    """What replica synchronisation of a 2D layout costs, step times in seconds.

    `plain_step_s` without it, `weights_step_s` with whole shards averaged, `gradients_step_s` with the gradients of
    touched rows exchanged, `fully_sharded_step_s` with weights held in parts, where that is the layout's choice;
    `step_time_s` is the average of the layout's own choice. `group_sizes` are the ranks of every sharding group.
    """

    sync: Sync
    sync_interval: int
    replicas: int
    plain_step_s: float
    weights_step_s: float
    gradients_step_s: float
    fully_sharded_step_s: float | None = None
    group_sizes: tuple[int, ...] = ()

    def average_weights_s(self, interval: int) -> float:
        """Mean step time in seconds when weights are averaged every `interval` steps: (sync + (k - 1) plain) / k."""
        return self.plain_step_s + (self.weights_step_s - self.plain_step_s) / interval

    @property
    def step_time_s(self) -> float:
        """Mean step time of the layout's own choice in seconds."""
        if self.fully_sharded_step_s is not None:
            return self.fully_sharded_step_s
        return self.gradients_step_s if self.sync == "gradients" else self.average_weights_s(self.sync_interval)

    @property
    def weights_cheaper_from(self) -> int | None:
        """The smallest `sync_interval` at which averaging weights is cheaper than gradients every step; None: never."""
        saved = self.gradients_step_s - self.plain_step_s
        extra = self.weights_step_s - self.plain_step_s
        if extra < saved:
            return 1
        if saved <= 0:
            return None
        interval = max(1, int(extra / saved))
        while self.average_weights_s(interval) >= self.gradients_step_s:
            interval += 1
        return interval

    def sentence(self) -> str:
        """Which of the two ways is cheaper from which interval on, in one sentence."""
        start = self.weights_cheaper_from
        if start is None:
            return "exchanging gradients every step costs nothing here: averaging weights is never cheaper"
        if start == 1:
            return "averaging weights every step is already cheaper than exchanging gradients"
        return f"averaging weights is cheaper than exchanging gradients from sync_interval = {start} on"

    def to_dict(self) -> dict[str, object]:
        """JSON values in seconds."""
        return {
            "sync": self.sync,
            "sync_interval": self.sync_interval,
            "replicas": self.replicas,
            "step_time_s": self.step_time_s,
            "plain_step_s": self.plain_step_s,
            "weights_step_s": self.weights_step_s,
            "gradients_step_s": self.gradients_step_s,
            "fully_sharded_step_s": self.fully_sharded_step_s,
            "weights_cheaper_from_interval": self.weights_cheaper_from,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementReport:
    """Both placements of one 2D layout: what each makes of all-to-all and of replica synchronisation.

    Contiguous groups keep look-ups in the node and let replicas cross nodes; interleaved groups do the reverse.
    """

    contiguous: SyncReport
    interleaved: SyncReport

    def better_at(self, interval: int) -> Placement:
        """The placement with the shorter mean step when weights are averaged every `interval` steps."""
        times = (self.contiguous.average_weights_s(interval), self.interleaved.average_weights_s(interval))
        return "contiguous" if times[0] <= times[1] else "interleaved"

    @property
    def changes_at(self) -> int | None:
        """The smallest `sync_interval` at which the better placement is another one than at 1; None: never.

        Mean steps are p + e / k with the plain step p and the extra e of a synchronisation, so they cross once, at
        k = (e1 - e2) / (p2 - p1).
        """
        here, there = self.contiguous, self.interleaved
        plain = there.plain_step_s - here.plain_step_s
        extra = (here.weights_step_s - here.plain_step_s) - (there.weights_step_s - there.plain_step_s)
        if plain == 0 or extra / plain < 1:
            return None
        near = max(2, int(extra / plain))
        return next((k for k in range(near, near + 3) if self.better_at(k) != self.better_at(1)), None)

    def sentence(self) -> str:
        """Which placement is better at which intervals, in one sentence."""
        first, change = self.better_at(1), self.changes_at
        if change is None:
            return f"{first} placement is better at every sync_interval"
        return (
            f"{first} placement is better up to sync_interval = {change - 1}, {self.better_at(change)} from {change} on"
        )

    def to_dict(self) -> dict[str, object]:
        """JSON values in seconds."""
        return {
            "contiguous": self.contiguous.to_dict(),
            "interleaved": self.interleaved.to_dict(),
            "better_changes_at_interval": self.changes_at,
        }

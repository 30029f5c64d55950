"""How replicas of a 2D layout are kept equal, as operations of the step: averaged, exchanged or fully sharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.codecs import FULL_BYTES
from foreshard.simulator.job.demand import Demand, FamilyDemand, ReplicaDemand
from foreshard.simulator.job.layout import Groups, ResolvedLayout, Sync
from foreshard.simulator.job.program import Collective, CollectiveKind, Dep
from foreshard.simulator.step.costs import INDEX_BYTES
from foreshard.simulator.step.op_list import OpList

__all__ = ["ReplicaOps", "family_name"]

FloatArray = NDArray[np.float64]


def family_name(family: FamilyDemand) -> str:
    """The name of a sharding kind's operations: "row_wise", or "row_wise.sequence" for sequence tables."""
    return family.sharding if family.pooled else f"{family.sharding}.sequence"


@dataclass(slots=True, kw_only=True)
class ReplicaOps(OpList):
    """A list of operations that can synchronise replicas by `sync` (None: not in this step)."""

    layout: ResolvedLayout
    demand: Demand
    sync: Sync | None

    def replica_sync(self) -> None:
        """Average whole shards (weights), or exchange the touched rows' gradients and apply them (gradients)."""
        updated = tuple(Dep(f"embedding_backward.{family_name(family)}") for family in self.demand.families)
        if self.sync == "weights" and updated:
            for name, nbytes, groups in self._averaged():
                self._over_replicas(name, "all_reduce", _of_first_member(nbytes, groups), groups, updated)
        if self.sync == "gradients" and updated:
            self._exchange_gradients(updated)

    def _averaged(self) -> Iterator[tuple[str, FloatArray, Groups]]:
        """(Operation, bytes [ranks], groups) of every all_reduce: weights and optimizer state, round by round."""
        for suffix, replica in self._rounds():
            yield f"replica_sync.weights{suffix}", replica.weight_bytes, replica.groups
            if replica.state_elements.any():
                yield f"replica_sync.state{suffix}", replica.state_elements * FULL_BYTES, replica.groups

    def _rounds(self) -> Iterator[tuple[str, ReplicaDemand]]:
        """The rounds of replica synchronisation, each with what it adds to an operation's name if there are several."""
        rounds = self.demand.replica_rounds
        for number, replica in enumerate(rounds, start=1):
            yield (f".{number}" if len(rounds) > 1 else ""), replica

    def _exchange_gradients(self, updated: tuple[Dep, ...]) -> None:
        """Tell how many rows of each shard were touched, then gather them: all_gather takes lists of one length.

        Equal lengths: NVIDIA/nccl, ncclAllGather's sendcount; gloo alike. Shorter lists are padded to the longest.
        """
        gathered_bytes, gathered = [], []
        for suffix, replica in self._rounds():
            counts, rows = f"replica_sync.counts{suffix}", f"replica_sync.rows{suffix}"
            told = INDEX_BYTES * replica.shards
            self._over_replicas(counts, "all_gather", _gathered(told, replica.groups), replica.groups, updated)
            own = replica.touched_rows * INDEX_BYTES + replica.touched_elements * FULL_BYTES
            sizes, known = _gathered(own, replica.groups), (Dep(counts),)
            self._over_replicas(rows, "all_gather", sizes, replica.groups, known, waits=known)
            gathered.append(Dep(rows))
            gathered_bytes.append(
                np.array([own[group].sum() for group in replica.groups.members])[replica.groups.group_of]
            )
        work = self.costs.replica_update(np.array(gathered_bytes), self.demand.replica_rounds)
        self.compute(
            "embedding_optimizer.replicas", "optimizer_update", "compute", (work,),
            self.costs["embedding_backward_launches"], deps=tuple(gathered),
        )  # fmt: skip

    def _replicas_ready(self) -> tuple[Dep, ...]:
        """What a lookup waits for: the last step's averaging of the weights it reads.

        Fully sharded weights are averaged after the lookup: it reads what the rank's own group wrote.
        """
        if self.sync != "weights" or not self.demand.families:
            return ()
        return tuple(Dep(name, 1) for name, _, _ in self._averaged())

    def release_weights(self, family: FamilyDemand) -> tuple[str, ...]:
        """Fully sharded: average the looked-up weights and keep 1 / replicas of them; what the forward waits for.

        meta-pytorch/torchrec 1.9.2, ShardedBatchedFusedEmbeddingBag: a reduce_scatter that starts with the end of the
        lookup and is waited for with the vectors. Weights that do not divide evenly are copied to be padded.
        """
        if self.sync != "fully_sharded":
            return ()
        name, replica = family_name(family), self._replica_groups()
        padded = np.where(family.weight_elements % self.layout.replicas, family.weight_bytes, 0.0)
        after = f"lookup.{name}"
        if padded.any():
            work = self.costs.pad(padded)
            self.compute(
                f"replica_sync.pad.{name}", "dense_gradient_sync", "replica_comm", (work,), 1, deps=(Dep(after),)
            )
            after = f"replica_sync.pad.{name}"
        sizes = self._divisible(family)
        self._over_replicas(f"replica_sync.reduce_scatter.{name}", "reduce_scatter", sizes, replica, (Dep(after),))
        return (f"replica_sync.reduce_scatter.{name}",)

    def gather_weights(self, family: FamilyDemand, after: str) -> str:
        """Fully sharded: fetch the averaged weights back once their gradients have arrived; what the update waits for.

        meta-pytorch/torchrec 1.9.2, the same class: an all_gather in the backward that the compute stream waits for.
        """
        if self.sync != "fully_sharded":
            return after
        name, replica = f"replica_sync.all_gather.{family_name(family)}", self._replica_groups()
        self._over_replicas(name, "all_gather", self._divisible(family), replica, (Dep(after),))
        return name

    def _divisible(self, family: FamilyDemand) -> tuple[float, ...]:
        """The bytes of a family's weights in each replica group, padded to divide evenly."""
        missing = -family.weight_elements % self.layout.replicas
        element = family.weight_bytes / np.maximum(family.weight_elements, 1)
        return _of_first_member(family.weight_bytes + missing * element, self._replica_groups())

    def _replica_groups(self) -> Groups:
        assert self.layout.replica is not None  # resolve_layout refuses fully sharded groups of different sizes
        return self.layout.replica

    def _over_replicas(
        self, name: str, kind: CollectiveKind, nbytes: tuple[float, ...], groups: Groups, deps: tuple[Dep, ...],
        *, waits: tuple[Dep, ...] = (),
    ) -> None:  # fmt: skip
        work = Collective(kind=kind, groups=groups, nbytes=nbytes)
        self.collective(name, "dense_gradient_sync", "replica_comm", work, deps=deps, waits=waits)


def _of_first_member(nbytes: FloatArray, groups: Groups) -> tuple[float, ...]:
    """The bytes of each group, given those of every rank, which are equal among its members."""
    return tuple(nbytes[[group[0] for group in groups.members]].tolist())


def _gathered(nbytes: FloatArray, groups: Groups) -> tuple[float, ...]:
    """The bytes that an all_gather gathers in each group, given those of every rank, padded to the longest."""
    return tuple(float(nbytes[group].max() * len(group)) for group in groups.members)

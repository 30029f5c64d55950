"""The rest of a step: the batch copied to the device, replicated tables, the dense model and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from foreshard.calibration.ops.device_ops import DeviceOps, RowGradients, Tables
from foreshard.calibration.ops.optimizers import Adam, EmbeddingOptimizer
from foreshard.calibration.runner.batches import Prepared
from foreshard.calibration.runner.collectives import all_reduce
from foreshard.calibration.runner.dense import DenseModel, loss_of
from foreshard.calibration.runner.family import Family
from foreshard.calibration.runner.id_ops import feature_bags
from foreshard.calibration.runner.settings import RunSettings
from foreshard.calibration.runner.shards import Shard
from foreshard.calibration.runner.state import BatchState, FamilyState, Issue
from foreshard.simulator.job.workload import Workload

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["ModelOps", "at_step"]


class ModelOps:
    """The dense model and the replicated tables of one rank.

    `gradients` float32 [dense parameters + elements of replicated tables] is what all ranks add up at once.
    """

    def __init__(
        self, workload: Workload, families: Sequence[Family], replicated: Sequence[Shard], ops: DeviceOps,
        settings: RunSettings, *, seed: int,
    ) -> None:  # fmt: skip
        import torch

        self._workload = workload
        self._families = tuple(families)
        self._ops = ops
        self._exact = settings.exact
        self._keep = settings.keep_vectors
        dense = workload.dense.num_parameters
        sizes = [shard.weights.numel() for shard in replicated]
        self.gradients = torch.zeros(dense + sum(sizes), dtype=torch.float32, device=ops.device)
        self.parameters = torch.zeros(dense, dtype=torch.float32, device=ops.device)
        self.model = DenseModel(workload.dense, seed, self.parameters, self.gradients[:dense], exact=settings.exact)
        self._step = self._dense_step(settings)
        views = self.gradients[dense:].split(sizes) if sizes else ()
        self._targets = [view.view(shard.weights.shape) for view, shard in zip(views, replicated, strict=True)]
        self._replicated = {
            pooled: tables
            for pooled in (True, False)
            if (tables := _Replicated.of(ops, replicated, self._targets, pooled))
        }
        self.vectors: list[torch.Tensor] = []

    def _dense_step(self, settings: RunSettings) -> Callable[[], object]:
        """A step of torch's fused Adam, which the program prices; in exact mode of SGD with whole steps.

        As a function: a torch.optim.Optimizer imports torch's compiler, seconds and 70 MB of every rank for nothing.
        """
        import torch
        from torch.optim.adam import adam

        values, gradients = self.parameters, self.gradients[: self.parameters.numel()]
        if not len(values):
            return lambda: None
        if settings.exact:
            return lambda: values.sub_(gradients)
        means, squares = torch.zeros_like(values), torch.zeros_like(values)
        taken = torch.zeros((), dtype=torch.float32, device=values.device)
        # Moments and the rest as torch.optim.Adam has them.
        return partial(
            adam, [values], [gradients], [means], [squares], [], [taken], fused=True, amsgrad=False, maximize=False,
            lr=settings.dense_learning_rate, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0,
        )  # fmt: skip

    def copy_batch(self, prepared: Prepared) -> BatchState:
        """Copy a batch from host memory to the device; on a CPU from one place in memory to another."""

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self._ops.device, non_blocking=True, copy=True)

        return BatchState(
            prepared=prepared,
            values=copied(prepared.values),
            lengths=copied(prepared.lengths),
            weights=None if prepared.weights is None else copied(prepared.weights),
            dense=copied(prepared.dense),
            labels=copied(prepared.labels),
            families={name: FamilyState(plan=plan) for name, plan in prepared.plans.items()},
        )

    def lookup_replicated(self, batch: BatchState) -> None:
        """Vectors of the data_parallel tables for the rank's own batch."""
        for pooled, one in self._replicated.items():
            feature_bags(self._ops, batch, pooled)
            bags = batch.replicated[pooled]
            if pooled:
                vectors: tuple[torch.Tensor, ...] = (self._ops.pooled_lookup(one.tables, bags, mode=one.modes),)
            else:
                vectors = self._ops.sequence_lookup(one.tables, bags)
            batch.replicated_leaves[pooled] = tuple(vector.detach().requires_grad_() for vector in vectors)

    def forward(self, batch: BatchState) -> None:
        """The loss of the rank's batch."""
        import torch

        found: dict[tuple[int, str], list[torch.Tensor]] = {}
        for place, vector in self._found(batch):
            found.setdefault(place, []).append(vector)
        vectors = [
            part
            for number, table in enumerate(self._workload.tables)
            for feature in table.features
            for part in found[number, feature]
        ]
        if self._keep:
            self.vectors.append(torch.cat(vectors, dim=1).detach().clone())
        batch.loss = loss_of(self.model.logits(batch.dense, vectors), batch.labels, exact=self._exact)

    def _found(self, batch: BatchState) -> Iterator[tuple[tuple[int, str], torch.Tensor]]:
        """((Table, feature), vectors [samples, columns]) of all families, column parts in order."""
        for family in self._families:
            leaves = batch.families[family.name].leaves
            if family.pooled:
                widths = [piece.width for piece in family.pieces]
                places = [(piece.table, piece.feature) for piece in family.pieces]
                yield from zip(places, leaves[0].split(widths, dim=1), strict=True)
            else:
                features = [(family.numbers[place], feature) for place, feature in family.features]
                yield from self._summed(batch, features, leaves)
        for pooled, one in self._replicated.items():
            leaves = batch.replicated_leaves[pooled]
            if pooled:
                yield from zip(one.features, leaves[0].split(one.widths, dim=1), strict=True)
            else:
                yield from self._summed(batch, one.features, leaves)

    def _summed(
        self, batch: BatchState, features: Sequence[tuple[int, str]], sequences: Sequence[torch.Tensor]
    ) -> Iterator[tuple[tuple[int, str], torch.Tensor]]:
        """Sequences summed up for each sample."""
        import torch

        samples = torch.arange(self._workload.batch_size, device=self._ops.device)
        for place, vectors in zip(features, sequences, strict=True):
            lengths = batch.lengths[batch.prepared.length_row[place[1]]]
            sample = torch.repeat_interleave(samples, lengths, output_size=len(vectors))
            yield place, vectors.new_zeros((len(samples), vectors.shape[1])).index_add(0, sample, vectors)

    def backward(self, batch: BatchState) -> None:
        """The gradients of dense parameters and of all vectors."""
        assert batch.loss is not None
        self._ops.clear([self.gradients[: self.parameters.numel()]])
        if batch.loss.requires_grad:
            batch.loss.backward()
        batch.loss = batch.loss.detach()

    def backward_replicated(self, batch: BatchState) -> None:
        """Gradients of the data_parallel tables: cleared, then summed row by row."""
        import torch

        self._ops.clear(self._targets)
        for pooled, one in self._replicated.items():
            gradients = tuple(
                torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in batch.replicated_leaves[pooled]
            )
            features, bags = one.tables.feature_tables, batch.replicated[pooled]
            if pooled:
                self._ops.add_pooled(one.targets, features, gradients[0], bags, mode=one.modes)
            else:
                self._ops.add_sequence(one.targets, features, gradients, bags)

    def all_reduce(self, group: dist.ProcessGroup) -> Issue:
        """All gradients that every rank needs, averaged; in exact mode added up."""
        return all_reduce([self.gradients], group, mean=not self._exact)

    def optimize(self, optimizer: EmbeddingOptimizer) -> None:
        """Step the dense parameters, and all rows of the data_parallel tables by the embedding optimizer."""
        self._step()
        for one in self._replicated.values():
            gradients = [RowGradients(rows=rows, sums=sums) for rows, sums in zip(one.rows, one.targets, strict=True)]
            self._ops.update_rows(one.tables, optimizer, gradients)


class _Replicated:
    """The data_parallel tables of one pooling kind: `features` (table, feature), `widths`, `modes`, all rows."""

    def __init__(self, ops: DeviceOps, shards: Sequence[Shard], targets: Sequence[torch.Tensor]) -> None:
        import torch

        named = [(place, shard, name) for place, shard in enumerate(shards) for name in shard.table.table.features]
        self.features = [(shard.number, name) for _, shard, name in named]
        self.widths = [shard.table.table.embedding_dim for _, shard, _ in named]
        self.modes = ["mean" if shard.table.table.pooling == "mean" else "sum" for shard in shards]
        self.targets = list(targets)
        self.rows = [torch.arange(len(shard.weights), device=ops.device) for shard in shards]
        self.tables: Tables = ops.tables(
            [shard.weights for shard in shards],
            feature_tables=[place for place, _, _ in named],
            state=[shard.state for shard in shards],
        )

    @classmethod
    def of(
        cls, ops: DeviceOps, shards: Sequence[Shard], targets: Sequence[torch.Tensor], pooled: bool
    ) -> _Replicated | None:
        chosen = [
            (shard, target) for shard, target in zip(shards, targets, strict=True)
            if (shard.table.table.pooling != "none") == pooled
        ]  # fmt: skip
        return cls(ops, [shard for shard, _ in chosen], [target for _, target in chosen]) if chosen else None


def at_step(optimizer: EmbeddingOptimizer, step: int) -> EmbeddingOptimizer:
    """The optimizer in step `step`, counted from 0."""
    return replace(optimizer, step=step + 1) if isinstance(optimizer, Adam) else optimizer

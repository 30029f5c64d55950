"""The same training in one process: whole tables, the batches of all ranks, autograd, optimizers written out.

Slow, for small jobs, and meant to be read: it knows nothing of shards, routes or collectives, and what it computes is
what a sharded run must compute. It shares the initial values, the batches and the dense model's layers with the runner.

What is meant by training with T ranks in sharding groups of L, M = T / L replicas:

- The loss of a rank is the mean over its batch. Dense parameters and data_parallel tables step by the mean gradient of
  all ranks (DistributedDataParallel).
- One replica: rows step by the mean over the T ranks (TorchRec divides gradients by the ranks of the sharding group,
  torchrec/distributed/comm_ops.py, set_gradient_division). Equal to one process on the whole batch.
- sync = "weights": every group trains its own copy by the mean over its L ranks; every `sync_interval` steps weights
  and optimizer state become their means over the M copies (torchrec/distributed/model_parallel.py, DMPCollection.sync:
  all_reduce with ReduceOp.AVG). Row-wise AdaGrad takes v / M in place of v, since squares of gradients over batches M
  times smaller are M times larger (arXiv 2508.03854).
- sync = "gradients": rows step by the mean over all T ranks, so that copies stay equal, as with one replica.
- sync = "fully_sharded": a group looks rows up in its own copy; then weights, not state, become their means over the
  copies, and the group's own step is taken from there (TorchRec's ShardedBatchedFusedEmbeddingBag: reduce_scatter with
  ReduceOp.AVG after the look-up, all_gather before the update). After a step copies differ by their last steps.

In exact mode losses and gradients are sums, and SGD steps are whole: 1, or M where weights are averaged.

Column shards are tables of their own to row-wise AdaGrad, which keeps one v a row and shard (FBGEMM, TorchRec).
Encoded vectors are rounded as they travel where they travel whole; partial pools of row-wise kinds are summed on the
way in 16 bits, in an order that no reference can know: they are left as they are, to be compared with a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from foreshard.calibration.runner.batches import rank_batch
from foreshard.calibration.runner.dense import DenseModel, loss_of
from foreshard.calibration.runner.initial import dense_inputs, labels, table_rows
from foreshard.calibration.runner.settings import RunSettings
from foreshard.kernels.reference_codecs import Codec, decode, encode
from foreshard.simulator.job.batches import JaggedBatch
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import DataType, Table
from foreshard.simulator.step.prediction import Prediction

__all__ = ["Copy", "DenseReference"]

_ROWS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_SUMMED_ON_THE_WAY = ("row_wise", "table_row_wise", "grid_shard")
_EPS = 1e-8  # FBGEMM's default for AdaGrad and Adam
_BETA1, _BETA2 = 0.9, 0.999  # FBGEMM's defaults for Adam
_CPU = torch.device("cpu")


@dataclass(slots=True, kw_only=True, eq=False)
class Copy:
    """One table as one sharding group has it: `weights` [rows, dim] in the table's format.

    `columns` are the spans of its column shards; `state` [column shards][state tensors], float32 [rows] or
    [rows, columns of the shard].
    """

    weights: torch.Tensor
    columns: tuple[slice, ...]
    state: list[list[torch.Tensor]]
    leaf: torch.Tensor = field(init=False)
    touched: torch.Tensor = field(init=False)

    def begin_step(self) -> None:
        """Make the float32 leaf that this step's gradient collects in, and forget which rows were touched."""
        self.leaf = self.weights.float().clone().requires_grad_()
        self.touched = torch.zeros(len(self.weights), dtype=torch.bool)

    @property
    def gradient(self) -> torch.Tensor:
        """The gradient of the sum of all losses, float32 [rows, dim]."""
        return torch.zeros_like(self.leaf) if self.leaf.grad is None else self.leaf.grad


class DenseReference:
    """Trains `prediction.scenario` for all ranks; `losses` [steps][ranks] and `vectors` [steps][ranks] grow by step.

    `vectors` are float32 [samples, sum of the features' dims]: what the dense model sees, in the order of the tables.
    """

    def __init__(self, prediction: Prediction, settings: RunSettings) -> None:
        self.losses: list[list[float]] = []
        self.vectors: list[list[NDArray[np.float32]]] = []
        self._prediction, self._scenario, self._settings = prediction, prediction.scenario, settings
        self._ranks, self._groups = prediction.layout.world_size, prediction.layout.sharding
        self._sync = self._scenario.layout.sync if prediction.layout.replicas > 1 else None
        self._tables = [self._copies(number) for number in range(len(self._scenario.workload.tables))]
        dense, seed = self._scenario.workload.dense, self._scenario.execution.seed
        self.dense = torch.zeros(dense.num_parameters)
        self._dense_gradient = torch.zeros(dense.num_parameters)
        self._model = DenseModel(dense, seed, self.dense, self._dense_gradient, exact=settings.exact)
        self._adam = torch.optim.Adam([self.dense], lr=settings.dense_learning_rate) if len(self.dense) else None

    # -- tables -------------------------------------------------------------------------------------------------

    def _copies(self, number: int) -> list[Copy]:
        """The copies of a table, one a sharding group; of a data_parallel table one for all ranks."""
        if self._sharded(number, 0).sharding == "data_parallel":
            return [self._new_copy(number, self._sharded(number, 0))]
        return [self._new_copy(number, self._sharded(number, int(group[0]))) for group in self._groups.members]

    def _sharded(self, number: int, rank: int) -> ShardedTable:
        return self._prediction.sharded_for(rank)[number]

    def _new_copy(self, number: int, sharded: ShardedTable) -> Copy:
        table, seed = sharded.table, self._scenario.execution.seed
        ids, dims = torch.arange(table.num_embeddings), range(table.embedding_dim)
        rows = table_rows(seed, number, ids, dims, table.num_embeddings, exact=self._settings.exact)
        columns = tuple(slice(begin, end) for begin, end in pairwise(sharded.col_bounds.tolist()))
        state = [self._new_state(table.num_embeddings, span.stop - span.start) for span in columns]
        return Copy(weights=rows.to(_ROWS[table.data_type]), columns=columns, state=state)

    def _new_state(self, rows: int, width: int) -> list[torch.Tensor]:
        match self._scenario.execution.optimizer:
            case "sgd":
                return []
            case "rowwise_adagrad":
                return [torch.zeros(rows)]
            case "adagrad":
                return [torch.zeros(rows, width)]
            case "adam":
                return [torch.zeros(rows, width), torch.zeros(rows, width)]

    def copy_of(self, table: str, rank: int) -> Copy:
        """The copy of a table that a rank reads from."""
        names = [one.name for one in self._scenario.workload.tables]
        return self._copy(names.index(table), rank)

    def _copy(self, number: int, rank: int) -> Copy:
        copies = self._tables[number]
        return copies[0] if len(copies) == 1 else copies[int(self._groups.group_of[rank])]

    # -- one step -----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Train one step on the batches of all ranks."""
        number = len(self.losses)
        for copies in self._tables:
            for copy in copies:
                copy.begin_step()
        self._dense_gradient.zero_()
        self.vectors.append([])
        losses = [self._loss(rank, number % self._settings.batches) for rank in range(self._ranks)]
        total = torch.stack(losses).sum()
        if total.requires_grad:
            total.backward()
        self.losses.append([float(loss.detach()) for loss in losses])
        self._update_tables(number)
        self._update_dense()

    def _loss(self, rank: int, number: int) -> torch.Tensor:
        workload, exact = self._scenario.workload, self._settings.exact
        batch, seed = rank_batch(self._prediction, rank, number), self._scenario.execution.seed
        vectors = [vector for table in range(len(workload.tables)) for vector in self._looked_up(table, rank, batch)]
        self.vectors[-1].append(torch.cat(vectors, dim=1).detach().numpy().copy())
        inputs = workload.dense.input_features
        dense = dense_inputs(seed, number, rank, batch.samples, inputs, _CPU, exact=exact)
        wanted = labels(seed, number, rank, batch.samples, _CPU, exact=exact)
        return loss_of(self._model.logits(dense, vectors), wanted, exact=exact)

    def _looked_up(self, number: int, rank: int, batch: JaggedBatch) -> list[torch.Tensor]:
        """The vectors [samples, dim] of every feature of a table."""
        table, copy = self._scenario.workload.tables[number], self._copy(number, rank)
        ids = [torch.from_numpy(batch.ids(feature)) for feature in table.features]
        sizes, every = [len(own) for own in ids], torch.cat(ids)
        copy.touched[every] = True
        travels = self._travels(number, rank)
        if travels == "distinct":
            distinct, places = torch.unique(every, return_inverse=True)
            vectors = self._wired(number, rank, copy.leaf[distinct])[places]
        elif travels == "every id":
            vectors = self._wired(number, rank, copy.leaf[every])
        else:
            vectors = copy.leaf[every]
        parts = zip(table.features, vectors.split(sizes), strict=True)
        sums = [_summed(table, batch, feature, own) for feature, own in parts]
        if travels == "sums":
            sums = [self._wired(number, rank, own) for own in sums]
        return [_averaged(table, batch, feature, own) for feature, own in zip(table.features, sums, strict=True)]

    def _travels(self, number: int, rank: int) -> Literal["nothing", "distinct", "every id", "sums", "partial sums"]:
        """What of a table's vectors goes from owners to batch owners."""
        sharded = self._sharded(number, rank)
        if sharded.sharding == "data_parallel":
            return "nothing"
        if self._scenario.execution.dedup:
            return "distinct"
        if sharded.table.pooling == "none":
            return "every id"
        return "partial sums" if sharded.sharding in _SUMMED_ON_THE_WAY else "sums"

    # -- the wire -----------------------------------------------------------------------------------------------

    def _wired(self, number: int, rank: int, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors as they arrive, column shard by column shard; their gradients are rounded on the way back."""
        comms, scale = self._scenario.comms, self._gradient_scale(rank)
        codecs = (_codec(comms.forward, "fp8_e4m3"), _codec(comms.backward, "fp8_e5m2"))
        parts = [_Wire.apply(vectors[:, span], *codecs, scale) for span in self._copy(number, rank).columns]
        return torch.cat(parts, dim=1)

    def _gradient_scale(self, rank: int) -> float:
        """What turns the gradient of a sum of losses into that of their mean over the ranks that step rows together."""
        if self._settings.exact:
            return 1.0
        group = int(self._groups.sizes[self._groups.group_of[rank]])
        return 1.0 / (self._ranks if self._sync == "gradients" else group)

    # -- updates ------------------------------------------------------------------------------------------------

    def _update_tables(self, number: int) -> None:
        for table, copies in enumerate(self._tables):
            if self._sharded(table, 0).sharding == "data_parallel":
                copies[0].touched[:] = True  # dense gradients: every row is stepped
                self._update(copies[0], copies[0].gradient * self._mean, number, replicas=1)
            else:
                self._update_copies(copies, number)

    @property
    def _mean(self) -> float:
        return 1.0 if self._settings.exact else 1.0 / self._ranks

    def _update_copies(self, copies: list[Copy], number: int) -> None:
        if self._sync == "gradients":
            total = torch.stack([copy.gradient for copy in copies]).sum(dim=0) * self._mean
            touched = torch.stack([copy.touched for copy in copies]).any(dim=0)
            for copy in copies:
                copy.touched = touched
                self._update(copy, total, number, replicas=1)
            return
        if self._sync == "fully_sharded":
            _average_weights(copies)
        for copy, group in zip(copies, self._groups.members, strict=True):
            self._update(copy, copy.gradient * self._gradient_scale(int(group[0])), number, replicas=len(copies))
        if self._sync == "weights" and (number + 1) % self._scenario.layout.sync_interval == 0:
            _average_weights(copies)
            _average_state(copies)

    def _update(self, copy: Copy, gradient: torch.Tensor, number: int, *, replicas: int) -> None:
        """Step the touched rows, column shard by column shard."""
        rows = copy.touched
        for span, state in zip(copy.columns, copy.state, strict=True):
            change = self._change(gradient[rows, span], [one[rows] for one in state], number + 1, replicas)
            for one, now in zip(state, change[1:], strict=True):
                one[rows] = now
            stepped = copy.weights[rows, span].float() - change[0]
            copy.weights[rows, span] = stepped.to(copy.weights.dtype)

    def _change(
        self, gradient: torch.Tensor, state: list[torch.Tensor], step: int, replicas: int
    ) -> tuple[torch.Tensor, ...]:
        """Return (what is taken off the rows, the state after the step...); `gradient` [rows, columns]."""
        if self._settings.exact:
            return (gradient * replicas,)
        rate = self._settings.embedding_learning_rate
        match self._scenario.execution.optimizer:
            case "sgd":
                return (rate * gradient,)
            case "rowwise_adagrad":
                v = state[0] + (gradient**2).mean(dim=1)
                return rate * gradient / (torch.sqrt(v / replicas) + _EPS)[:, None], v
            case "adagrad":
                v = state[0] + gradient**2
                return rate * gradient / (torch.sqrt(v) + _EPS), v
            case "adam":
                m = _BETA1 * state[0] + (1 - _BETA1) * gradient
                v = _BETA2 * state[1] + (1 - _BETA2) * gradient**2
                root = torch.sqrt(v / (1 - _BETA2**step)) + _EPS
                return rate * (m / (1 - _BETA1**step)) / root, m, v

    def _update_dense(self) -> None:
        """Adam by the mean gradient of all ranks; in exact mode a whole step of SGD by their sum."""
        if self._adam is None:
            return
        if self._settings.exact:
            self.dense -= self._dense_gradient
        else:
            self.dense.grad = self._dense_gradient * self._mean
            self._adam.step()


def _summed(table: Table, batch: JaggedBatch, feature: str, vectors: torch.Tensor) -> torch.Tensor:
    """The vectors of a feature's ids [ids, dim] summed up for each sample, [samples, dim]; sequences are too."""
    place = batch.features.index(feature)
    begin, end = batch.feature_starts[place : place + 2].tolist()
    if batch.weights is not None and table.pooling != "none":
        vectors = vectors * torch.from_numpy(batch.weights[begin:end]).float()[:, None]
    sample = torch.repeat_interleave(torch.arange(batch.samples), torch.from_numpy(batch.lengths[place]))
    return torch.zeros(batch.samples, table.embedding_dim).index_add(0, sample, vectors)


def _averaged(table: Table, batch: JaggedBatch, feature: str, sums: torch.Tensor) -> torch.Tensor:
    """Sums [samples, dim] over the number of ids where the table is pooled by the mean."""
    lengths = torch.from_numpy(batch.lengths[batch.features.index(feature)])
    return sums / lengths.clamp(min=1)[:, None] if table.pooling == "mean" else sums


def _average_weights(copies: list[Copy]) -> None:
    mean = torch.stack([copy.weights.float() for copy in copies]).mean(dim=0)
    for copy in copies:
        copy.weights = mean.to(copy.weights.dtype, copy=True)


def _average_state(copies: list[Copy]) -> None:
    for part, state in enumerate(copies[0].state):
        for place in range(len(state)):
            mean = torch.stack([copy.state[part][place] for copy in copies]).mean(dim=0)
            for copy in copies:
                copy.state[part][place] = mean.clone()


def _codec(precision: DataType, fp8: Codec) -> Codec | None:
    """The codec of a precision; fp8 has more range on the way back (TorchRec's fbgemm_qcomm_codec.py)."""
    match precision:
        case "fp32":
            return None
        case "fp8":
            return fp8
        case _:
            return precision


class _Wire(torch.autograd.Function):
    """Vectors [n, columns] through a codec; gradients through another, scaled first as the runner scales them."""

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, forth: Codec | None, back: Codec | None, scale: float) -> torch.Tensor:
        """The vectors as they arrive."""
        ctx.back, ctx.scale = back, scale
        return _round_trip(vectors, forth)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """The gradients as they arrive, with their scale taken off again."""
        return _round_trip(gradient * ctx.scale, ctx.back) / ctx.scale, None, None, None


def _round_trip(vectors: torch.Tensor, codec: Codec | None) -> torch.Tensor:
    if codec is None:
        return vectors.clone()
    rows = np.ascontiguousarray(vectors.detach().numpy())
    return torch.from_numpy(decode(encode(rows, codec), codec))

"""The scenario's model in TorchRec's terms: an EmbeddingBagCollection and the dense layers of our own runner.

Needs torch and torchrec (`make torchrec` makes an environment that has both).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.fx
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor, PoolingType
from torchrec.streamable import Pipelineable

from foreshard.calibration.runner import initial
from foreshard.calibration.runner.batches import rank_batch
from foreshard.calibration.runner.dense import DenseModel, fold
from foreshard.simulator.job.workload import Dense, Table, Workload
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError

__all__ = ["Batch", "Model", "batch_of"]

_POOLING = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}


@dataclass
class Batch(Pipelineable):
    """A rank's batch as TorchRec's pipelines carry it: ids, dense float32 [samples, inputs], labels [samples]."""

    ids: KeyedJaggedTensor
    dense: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        """The batch on a device."""
        ids = self.ids.to(device, non_blocking=non_blocking)
        dense, labels = (one.to(device, non_blocking=non_blocking) for one in (self.dense, self.labels))
        return Batch(ids, dense, labels)

    def record_stream(self, stream: torch.Stream) -> None:
        """Nothing to do: on the CPU memory is not reused behind a stream's back."""

    def pin_memory(self) -> Batch:
        """The batch itself: there is no device to copy it to."""
        return self


def batch_of(prediction: Prediction, rank: int, step: int) -> Batch:
    """What our runner trains on in that step: the same ids, dense features and labels."""
    seed, workload = prediction.scenario.execution.seed, prediction.scenario.workload
    drawn, cpu = rank_batch(prediction, rank, step), torch.device("cpu")
    ids = KeyedJaggedTensor(
        keys=list(drawn.features),
        values=torch.from_numpy(drawn.values),
        lengths=torch.from_numpy(drawn.lengths).to(torch.int32).reshape(-1),
    )
    inputs = workload.dense.input_features
    dense = initial.dense_inputs(seed, step, rank, workload.batch_size, inputs, cpu, exact=False)
    return Batch(ids, dense, initial.labels(seed, step, rank, workload.batch_size, cpu, exact=False))


class Model(nn.Module):
    """Bottom layers, embedding bags, top layers; returns (loss, (loss,)) as TorchRec's pipelines expect it."""

    def __init__(self, workload: Workload, seed: int) -> None:
        super().__init__()
        _refuse(workload)
        self.layers = DenseLayers(workload.dense, seed)
        self.embeddings = _embeddings(workload.tables)
        self.features = [feature for table in workload.tables for feature in table.features]

    def forward(self, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
        """Loss of the batch; the bottom layers come first, as in TorchRec's DLRM."""
        bottom = self.layers.bottom(batch.dense)
        vectors = _vectors(self.embeddings(batch.ids), self.features)
        loss = self.layers.top(bottom, vectors, batch.labels)
        return loss, (loss.detach(),)


class DenseLayers(nn.Module):
    """The layers of `DenseModel`, with the same initial values, as a module that DistributedDataParallel can wrap."""

    def __init__(self, dense: Dense, seed: int) -> None:
        super().__init__()
        flat = torch.zeros(2, dense.num_parameters)
        ours = DenseModel(dense, seed, flat[0], flat[1], exact=False)
        if ours.shape.spare or ours.shape.repeats > 1:
            raise InputError("the outside judge trains models given as layers: set workload.dense.layers")
        self.shape = ours.shape
        self.values = nn.ParameterList([nn.Parameter(tensor.detach().clone()) for tensor in ours.tensors])

    def bottom(self, dense: torch.Tensor) -> torch.Tensor:
        """The bottom chain, [samples, outputs]; without one the dense features are not used."""
        return self._chain(dense, 0) if self.shape.has_bottom else dense[:, :0]

    def top(self, bottom: torch.Tensor, vectors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss, given the bottom's outputs and the pooled vectors [samples, columns]."""
        values = torch.cat([bottom, vectors], dim=1)
        for number in range(int(self.shape.has_bottom), len(self.shape.chains)):
            values = self._chain(_folded(values, self.shape.chains[number][0]), number)
        return nn.functional.binary_cross_entropy_with_logits(values.mean(dim=1), labels)

    def _chain(self, values: torch.Tensor, number: int) -> torch.Tensor:
        first = sum(len(chain) - 1 for chain in self.shape.chains[:number])
        for layer in range(first, first + len(self.shape.chains[number]) - 1):
            values = nn.functional.linear(values, self.values[2 * layer], self.values[2 * layer + 1])
            if layer + 1 < len(self.shape.layers):
                values = torch.relu(values)
        return values


@torch.fx.wrap
def _vectors(pooled: KeyedTensor, features: list[str]) -> torch.Tensor:
    """The pooled vectors [samples, columns], feature by feature: a sharded collection has them owner by owner."""
    return torch.cat([pooled[feature] for feature in features], dim=1)


@torch.fx.wrap
def _folded(values: torch.Tensor, width: int) -> torch.Tensor:
    """`fold`, which asks for a shape and so is nothing that TorchRec's tracer should look into."""
    return fold(values, width)


def _refuse(workload: Workload) -> None:
    """Raise InputError for what an EmbeddingBagCollection with plain float32 layers is not."""
    problems = [
        f"table {table.name!r}: pooling {table.pooling!r}, data_type {table.data_type!r}; "
        "the outside judge trains pooled fp32 tables"
        for table in workload.tables
        if table.pooling not in _POOLING or table.data_type != "fp32"
    ]
    if workload.dense.data_type != "fp32":
        problems.append(f"workload.dense.data_type = {workload.dense.data_type!r}: the outside judge runs fp32")
    if workload.weighted:
        problems.append("workload.weighted = true: the outside judge trains without weights of ids")
    if problems:
        raise InputError(problems)


def _embeddings(tables: tuple[Table, ...]) -> EmbeddingBagCollection:
    configs = [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            feature_names=list(table.features),
            pooling=_POOLING[table.pooling],
        )
        for table in tables
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("cpu"))

"""One rank of TorchRec's own training step on gloo: DistributedModelParallel with the scenario's plan, as it is.

The ranks' environment is torchrun's. TorchRec's process group has one worker thread, as ours has (`launch.world`), so
that collectives run in the order of issue, as they would on NCCL's one stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch
import torchrec.distributed.sharding_plan as sharding
from numpy.typing import NDArray
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from foreshard.calibration.judge.model import Batch, Model, batch_of
from foreshard.calibration.judge.recording import Issued, python_all_reduce, recorded
from foreshard.calibration.ops.optimizers import RowWiseAdagrad as OurAdagrad
from foreshard.calibration.runner.initial import table_rows
from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.step.prediction import Prediction
from foreshard.simulator.torchrec.torchrec_export import torchrec_calls
from foreshard.topologies.errors import InputError

__all__ = ["Job", "JobResult", "Shard"]

_PIPELINES = {"base": TrainPipelineBase, "sparse_dist": TrainPipelineSparseDist}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shard:
    """A block of a table that this rank holds: float32 [rows, columns] from (`row`, `column`) on."""

    table: str
    row: int
    column: int
    values: NDArray[np.float32]


@dataclass(slots=True, kw_only=True, eq=False)
class JobResult:
    """What TorchRec's training gave on one rank: losses and wall-clock seconds of every step, collectives of the last.

    `step_s` are the times between the ends of successive steps.
    """

    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    issued: list[Issued] = field(default_factory=list)


class Job:
    """TorchRec's model, plan, optimizers and pipeline of a scenario on this rank; the process group exists already."""

    def __init__(self, prediction: Prediction, rank: int, settings: RunSettings | None = None) -> None:
        scenario = prediction.scenario
        if prediction.layout.replicas > 1:
            raise InputError("TorchRec's DMPCollection refuses CPU ranks: the outside judge runs one sharding group")
        model = Model(scenario.workload, scenario.execution.seed)
        settings = settings or RunSettings()
        _train_embeddings_in_backward(model, scenario.execution.optimizer, settings.embedding_learning_rate)
        sharder = EmbeddingBagCollectionSharder()
        plan = ShardingPlan({"embeddings": _module_plan(prediction, model, sharder)})
        self.plan = plan
        self._calls: list[Issued] = []
        self.model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=[sharder])
        self._fill(prediction)
        dense = [value for name, value in self.model.named_parameters() if "embeddings" not in name]
        optimizer = torch.optim.Adam(dense, lr=settings.dense_learning_rate)
        self._pipeline = _PIPELINES[scenario.execution.pipeline](self.model, optimizer, torch.device("cpu"))
        self._drawn = [batch_of(prediction, rank, step) for step in range(settings.batches)]

    def train(self, steps: int) -> JobResult:
        """Train `steps` steps on the batches in turn, the first again at the end: that one is recorded."""
        result, batches = JobResult(), (self._batch(step) for step in count())
        before = time.perf_counter()
        for step in range(steps):
            if step == steps - 1:
                self._hook()
                with recorded(self._calls):
                    (loss,) = self._pipeline.progress(batches)
            else:
                (loss,) = self._pipeline.progress(batches)
            now = time.perf_counter()
            result.step_s.append(now - before)
            result.losses.append(float(loss))
            before = now
        result.issued = list(self._calls)
        return result

    def shards(self) -> list[Shard]:
        """Copies of the blocks of all tables that this rank holds."""
        return [
            Shard(table=table, row=row, column=column, values=values.detach().numpy().copy())
            for table, row, column, values in self._blocks()
        ]

    def _blocks(self) -> Iterator[tuple[str, int, int, torch.Tensor]]:
        """(Table, first row, first column, weights) of every block that the rank holds; the weights are TorchRec's."""
        for name, value in self.model.state_dict().items():
            if "embedding_bags" not in name:
                continue
            table = name.split(".")[-2]
            if not hasattr(value, "local_shards"):
                yield table, 0, 0, value
                continue
            for block in value.local_shards():
                yield table, *block.metadata.shard_offsets, block.tensor

    def _fill(self, prediction: Prediction) -> None:
        """Give every block our runner's initial rows: sharding does not keep those of the whole table."""
        tables = prediction.scenario.workload.tables
        number = {table.name: place for place, table in enumerate(tables)}
        with torch.no_grad():
            for name, row, column, values in self._blocks():
                table, (rows, columns) = number[name], values.shape
                values.copy_(
                    table_rows(
                        prediction.scenario.execution.seed, table, torch.arange(row, row + rows),
                        range(column, column + columns), tables[table].num_embeddings, exact=False,
                    )
                )  # fmt: skip

    def _batch(self, step: int) -> Batch:
        return self._drawn[step % len(self._drawn)]

    def _hook(self) -> None:
        """Have DDP call Python for its all_reduce, which is then recorded as all others are."""
        for module in self.model.modules():
            if isinstance(module, DistributedDataParallel):
                module.register_comm_hook(None, python_all_reduce())


def _train_embeddings_in_backward(model: Model, optimizer: str, rate: float) -> None:
    parameters = model.embeddings.parameters()
    match optimizer:
        case "sgd":
            apply_optimizer_in_backward(torch.optim.SGD, parameters, {"lr": rate})
        case "rowwise_adagrad":
            apply_optimizer_in_backward(
                RowWiseAdagrad, parameters, {"lr": rate, "eps": OurAdagrad(learning_rate=rate).eps}
            )
        case _:
            raise InputError(f"execution.optimizer = {optimizer!r}: the outside judge runs sgd or rowwise_adagrad")


def _module_plan(prediction: Prediction, model: Model, sharder: EmbeddingBagCollectionSharder):
    """The plan that foreshard exports, given to TorchRec's own functions."""
    world, local = prediction.layout.world_size, prediction.cluster.local_world_size
    calls = torchrec_calls(prediction.sharded, world, local)
    chosen = {name: getattr(sharding, call.function)(**dict(call.arguments)) for name, call in calls.items()}
    return sharding.construct_module_sharding_plan(
        model.embeddings, chosen, sharder, local_size=local, world_size=world, device_type="cpu"
    )

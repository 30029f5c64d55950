"""Puts one rank's part of a run together: its families, rows, batches and the actions of its operations."""

from __future__ import annotations

from collections.abc import Callable

from foreshard.calibration.ops.choosing import ops_on
from foreshard.calibration.ops.device_ops import DeviceOps
from foreshard.calibration.ops.optimizers import Adagrad, Adam, EmbeddingOptimizer, RowWiseAdagrad, Sgd
from foreshard.calibration.runner.actions import Actions
from foreshard.calibration.runner.batches import Loader
from foreshard.calibration.runner.family import Family, families_of
from foreshard.calibration.runner.gradient_ops import GradientOps
from foreshard.calibration.runner.id_ops import IdOps
from foreshard.calibration.runner.interfaces import World
from foreshard.calibration.runner.model_ops import ModelOps
from foreshard.calibration.runner.replica_ops import ReplicaOps, pieces_of
from foreshard.calibration.runner.settings import RunSettings
from foreshard.calibration.runner.shards import Shards
from foreshard.calibration.runner.vector_ops import Exchange, VectorOps
from foreshard.simulator.job.layout import Sync
from foreshard.simulator.step.prediction import Prediction

__all__ = ["build_actions", "embedding_optimizer", "gradient_scale", "sync_of"]


def sync_of(prediction: Prediction) -> Sync | None:
    """How replicas are synchronised; None where there is one."""
    return prediction.scenario.layout.sync if prediction.layout.replicas > 1 else None


def gradient_scale(prediction: Prediction, rank: int, *, exact: bool) -> float:
    """What gradients of vectors are multiplied by: 1 over the ranks whose batches step a row; 1 in exact mode.

    These are the ranks of the sharding group, or of the world where replicas exchange gradients.
    """
    if exact:
        return 1.0
    layout = prediction.layout
    group = int(layout.sharding.sizes[layout.sharding.group_of[rank]])
    return 1.0 / (layout.world_size if sync_of(prediction) == "gradients" else group)


def embedding_optimizer(prediction: Prediction, settings: RunSettings, *, replicated: bool) -> EmbeddingOptimizer:
    """The optimizer of sharded rows, or of data_parallel tables.

    Replicas that average their weights step by their own group's gradients: row-wise AdaGrad divides its sums of
    squares by their number (arXiv 2508.03854), and whole steps are multiples of it, so that means are whole too.
    """
    averaged = not replicated and sync_of(prediction) in ("weights", "fully_sharded")
    replicas = prediction.layout.replicas if averaged else 1
    if settings.exact:
        return Sgd(learning_rate=float(replicas))
    rate = settings.embedding_learning_rate
    match prediction.scenario.execution.optimizer:
        case "sgd":
            return Sgd(learning_rate=rate)
        case "rowwise_adagrad":
            return RowWiseAdagrad(learning_rate=rate, replicas=replicas)
        case "adagrad":
            return Adagrad(learning_rate=rate)
        case "adam":
            return Adam(learning_rate=rate)


def build_actions(
    prediction: Prediction, world: World, settings: RunSettings, phase: Callable[[str], None], ops: DeviceOps | None
) -> Actions:
    """The actions of a rank, with initial values."""
    scenario, rank = prediction.scenario, world.rank
    ops = ops or ops_on(world.device)
    families = families_of(prediction, rank)
    shards = _shards(prediction, families, settings, phase, ops)
    tables = {family.name: shards.tables_of(family, ops) for family in families}
    pieces = pieces_of(prediction, shards, rank, world.device) if prediction.layout.replicas > 1 else ()
    scale = gradient_scale(prediction, rank, exact=settings.exact)
    return Actions(
        families={family.name: family for family in families},
        loader=Loader(prediction, families, settings, rank, world.device),
        shards=shards,
        ids=IdOps(ops),
        vectors=VectorOps(ops, tables),
        gradients=GradientOps(ops, tables, scale=scale),
        model=ModelOps(scenario.workload, families, shards.replicated, ops, settings, seed=scenario.execution.seed),
        replicas=ReplicaOps(shards, pieces, tables, ops, replicas=prediction.layout.replicas),
        forward_exchange=Exchange(ops, scenario.comms.forward, backward=False),
        backward_exchange=Exchange(ops, scenario.comms.backward, backward=True),
        optimizer=embedding_optimizer(prediction, settings, replicated=False),
        whole_optimizer=embedding_optimizer(prediction, settings, replicated=True),
        sync=sync_of(prediction),
    )


def _shards(
    prediction: Prediction, families: tuple[Family, ...], settings: RunSettings, phase: Callable[[str], None],
    ops: DeviceOps,
) -> Shards:  # fmt: skip
    execution = prediction.scenario.execution
    whole = [(number, one) for number, one in enumerate(prediction.sharded) if one.sharding == "data_parallel"]
    return Shards(
        families, whole, ops, optimizer=execution.optimizer, seed=execution.seed, exact=settings.exact, phase=phase
    )

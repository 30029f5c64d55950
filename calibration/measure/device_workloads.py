"""Small training jobs whose operations are timed one by one to calibrate a device: drawn, not chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.scenario import ClusterChoice, Comms, Execution, Optimizer, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.workload import Access, DataType, Dense, Table, Workload

__all__ = ["drawn_scenarios"]

_HOST = "cpu-host"
_NEVER = 1_000_000  # steps between averages of replicas: none is averaged while the device is calibrated

# Ranges that are drawn from, evenly on a logarithmic scale: what a rank of a small machine holds and is asked for.
_BATCH = (64, 4096)
_TABLES = (1, 16)
_ROWS = (1_000, 200_000)
_DIM = (8, 256)
_POOLING = (1, 40)
_WIDTH = (16, 1024)
_DEPTH = (1, 4)
_ZIPF = (0.0, 1.2)
_MOST_IDS = 400_000  # of a rank's batch
_MOST_ELEMENTS = 16_000_000  # of the vectors of a rank's batch, and of all its tables twice that
_MOST_FLOPS = 4e9  # of the forward of a rank's batch
_FAMILIES = ("table_wise", "row_wise", "data_parallel")
_CODECS: tuple[DataType, ...] = ("fp32", "fp16", "bf16", "fp8", "int8")


def drawn_scenarios(count: int, ranks: int, *, optimizer: Optimizer, seed: int) -> list[Scenario]:
    """Return `count` jobs in which every rank is a sharding group of its own, so that all work is its own.

    Sizes follow a scrambled Sobol sequence over the logarithms of their ranges; kinds of tables, codecs,
    deduplication and ways to synchronise replicas take turns.
    """
    from scipy.stats import qmc  # half a second, which no other command needs

    points = qmc.Sobol(8, rng=np.random.default_rng(seed)).random(1 << max(0, (count - 1).bit_length()))[:count]
    return [_scenario(number, point, ranks, optimizer, seed) for number, point in enumerate(points.tolist())]


def _scenario(number: int, point: Sequence[float], ranks: int, optimizer: Optimizer, seed: int) -> Scenario:
    batch, tables, rows, dim, pooling, width, depth = (
        _between(share, *limits)
        for share, limits in zip(point, (_BATCH, _TABLES, _ROWS, _DIM, _POOLING, _WIDTH, _DEPTH), strict=False)
    )
    pooling = max(1, min(pooling, _MOST_IDS // (batch * tables)))
    dim = max(4, min(dim, _MOST_ELEMENTS // (batch * tables), 2 * _MOST_ELEMENTS // (rows * tables)) // 4 * 4)
    width = max(16, min(width, int(_MOST_FLOPS / (2 * batch * (tables * dim + width * depth)))))
    zipf = _ZIPF[0] + point[7] * (_ZIPF[1] - _ZIPF[0])
    held = tuple(
        Table(
            name=f"t{place}", num_embeddings=rows, embedding_dim=dim, pooling_factor=float(pooling),
            pooling="none" if number % 6 == 5 and pooling <= 4 else "sum", access=Access(zipf=zipf),
        )
        for place in range(tables)
    )  # fmt: skip
    dense = Dense(layers=((13, width, dim), (dim * (tables + 1), *(width,) * depth, 1)))
    families = _FAMILIES[: 3 if number % 4 == 3 else 2]
    kinds = [TableSharding(sharding=families[(place + number) % len(families)]) for place in range(tables)]
    plan = Plan(tables=tuple((table.name, kind) for table, kind in zip(held, kinds, strict=True)))
    codec = _CODECS[number % len(_CODECS)] if number % 2 else "fp32"
    return Scenario(
        name=f"device-{number}",
        cluster=ClusterChoice(preset=_HOST),
        workload=Workload(batch_size=batch, tables=held, dense=dense),
        plan=plan,
        layout=_layout(number, ranks),
        comms=Comms(forward=codec, backward="bf16" if codec == "int8" else codec),
        execution=Execution(optimizer=optimizer, routing="sampled", seed=seed + number, dedup=number % 5 == 4),
    )


def _layout(number: int, ranks: int) -> Layout:
    layout = Layout(sharding_group_size=1)
    if ranks == 1:
        return layout
    match number % 8:
        case 3:
            return replace(layout, sync="gradients")
        case 7:
            return replace(layout, sync="fully_sharded")
    return replace(layout, sync="weights", sync_interval=_NEVER)


def _between(share: float, low: int, high: int) -> int:
    """The whole number at a share of the way from `low` to `high` in logarithms."""
    return round(float(np.exp(np.log(low) + share * (np.log(high) - np.log(low)))))

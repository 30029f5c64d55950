"""Data types and optimizer of a plan, read off the storage that TorchRec's planner prints for every table.

The report names neither, but its storage counts weights, optimizer state, ids and output vectors, each of known size
(meta-pytorch/torchrec planner/shard_estimators.py): only one data type fits a large enough table, and only one
optimizer fits many tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.workload import DataType

__all__ = ["PrintedStorage", "StorageReading", "read_storage"]

GIB = 2.0**30
INDEX_BYTES = 8
# Printed to 0.001 GiB: half of it is rounding, the rest rounding of the printed pooling factors.
_TOLERANCE_GIB = 0.0008
_CANDIDATES: dict[DataType, int] = {"fp32": 4, "fp16": 2, "int8": 1}
_OUTPUT_BYTES = (4, 2)
_OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrintedStorage:
    """What decides a table's data type: its size, its ids and bags per sample, column shards and printed HBM in GiB."""

    rows: int
    columns: int
    ids_per_sample: float
    bags_per_sample: float
    column_shards: int
    hbm_gib: float

    def expected_gib(self, element: int, output: int, optimizer: Optimizer, samples: float) -> float:
        """GiB the planner counts with these bytes per element of weights and of output vectors."""
        state = {"sgd": 0.0, "rowwise_adagrad": 1 / self.columns, "adagrad": 1.0, "adam": 2.0}[optimizer]
        weights = self.rows * self.columns * element * (1 + state)
        ids = self.ids_per_sample * samples * INDEX_BYTES * self.column_shards
        return (weights + ids + self.bags_per_sample * samples * self.columns * output) / GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageReading:
    """What the storage of all tables tells together: `data_types` of the tables that fit one only, the type of most.

    `optimizer` is None where several fit the same number of tables. `output_bytes` are those of a vector's element.
    """

    data_types: dict[str, DataType]
    common: DataType
    optimizer: Optimizer | None
    output_bytes: int


def read_storage(tables: Mapping[str, PrintedStorage], samples: float) -> StorageReading | None:
    """Return the reading that fits most tables, or None if no table decides.

    `samples` are those of a whole step, batch size x ranks.
    """
    readings = [
        (optimizer, output, _fitting(tables, output, optimizer, samples))
        for optimizer in _OPTIMIZERS
        for output in _OUTPUT_BYTES
    ]
    most = max(len(fits) for _, _, fits in readings)
    best = [reading for reading in readings if len(reading[2]) == most]
    decided = {name: kinds[0] for name, kinds in best[0][2].items() if len(kinds) == 1}
    if not decided:
        return None
    optimizers = {optimizer for optimizer, _, _ in best}
    return StorageReading(
        data_types=decided,
        common=Counter(decided.values()).most_common(1)[0][0],
        optimizer=optimizers.pop() if len(optimizers) == 1 else None,
        output_bytes=best[0][1],
    )


def _fitting(
    tables: Mapping[str, PrintedStorage], output: int, optimizer: Optimizer, samples: float
) -> dict[str, list[DataType]]:
    """Data types that fit each table, of the tables that any fits."""
    found = {
        name: [
            kind
            for kind, element in _CANDIDATES.items()
            if abs(storage.expected_gib(element, output, optimizer, samples) - storage.hbm_gib) <= _TOLERANCE_GIB
        ]
        for name, storage in tables.items()
    }
    return {name: kinds for name, kinds in found.items() if kinds}

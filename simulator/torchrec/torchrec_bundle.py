"""The bundle of the planner's objects as JSON: options with costs, topology and architecture (see `torchrec_json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from foreshard.simulator.job.scenario import Optimizer
from foreshard.simulator.job.workload import DataType, Pooling, Table
from foreshard.simulator.torchrec.plan_file import PlanFile
from foreshard.simulator.torchrec.torchrec_build import plan_of_rows
from foreshard.simulator.torchrec.torchrec_json import ArchTable, OptionCosts, read_architecture, read_options
from foreshard.simulator.torchrec.torchrec_shards import ShardedRow
from foreshard.simulator.torchrec.torchrec_topology import read_topology

__all__ = ["plan_of_bundle"]

_OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": "sgd",
    "exact_sgd": "sgd",
    "rowwise_adagrad": "rowwise_adagrad",
    "exact_row_wise_adagrad": "rowwise_adagrad",
    "exact_rowwise_adagrad": "rowwise_adagrad",
    "adagrad": "adagrad",
    "exact_adagrad": "adagrad",
    "adam": "adam",
}
_DATA_TYPES: dict[str, DataType] = {
    "FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "FP8": "fp8", "INT8": "int8", "UINT8": "int8",
}  # fmt: skip


def plan_of_bundle(document: Mapping[str, Any], tables: Sequence[Table], problems: list[str]) -> PlanFile | None:
    """Return the plan of a bundle, or None after adding to `problems`; `tables` take the place of its architecture."""
    notes: list[str] = []
    rows, costs = read_options(document["options"], problems)
    topology, planner = None, dict[str, Any]()
    if "topology" in document:
        topology, planner = read_topology(document["topology"], problems, notes)
    arch, optimizers = read_architecture(document.get("architecture"), problems) if not tables else ([], [])
    poolings = document.get("pooling_factors", {})
    described = [*tables, *(_arch_table(table, poolings, problems, notes) for table in arch)]
    batch_size = document.get("batch_size")
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        problems.append(f"batch_size = {batch_size!r}: expected a whole number, 1 or more")
    return plan_of_rows(
        rows,
        _distinct(described),
        problems,
        notes,
        source="torchrec bundle",
        group_size=topology.world_size if topology else None,
        local_world_size=topology.local_world_size if topology else None,
        batch_size=batch_size,
        optimizer=_optimizer(optimizers, notes),
        planner={**planner, "tables": {row.name: _cost_of(row, costs) for row in rows}},
    )


def _distinct(tables: Sequence[Table]) -> tuple[Table, ...]:
    """Each name once: extract_model_arch lists a table under every sharder that claims it."""
    return tuple({table.name: table for table in tables}.values())


def _cost_of(row: ShardedRow, costs: Mapping[str, OptionCosts]) -> dict[str, Any]:
    cost = costs[f"{row.module}.{row.name}" if row.module else row.name]
    return {name: value for name, value in asdict(cost).items() if value is not None}


def _arch_table(table: ArchTable, poolings: Any, problems: list[str], notes: list[str]) -> Table:
    given = next(
        (value for fqn, value in _items(poolings) if fqn == table.name or fqn.endswith(f".{table.name}")), None
    )
    features = table.feature_names
    if not isinstance(given, list) or len(given) != max(1, len(features)) or not all(_positive(x) for x in given):
        if given is not None:
            problems.append(f"pooling_factors of '{table.name}': expected one positive number for each of its features")
        else:
            notes.append(f"table '{table.name}': no pooling factor is given, one id per sample is assumed")
        given = [1.0] * max(1, len(features))
    return Table(
        name=table.name,
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        feature_names=features,
        pooling_factor=tuple(float(pooling) for pooling in given),
        pooling=_pooling(table, notes),
        data_type=_data_type(table, notes),
    )


def _items(poolings: Any) -> list[tuple[str, Any]]:
    return [(str(name), value) for name, value in poolings.items()] if isinstance(poolings, Mapping) else []


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _pooling(table: ArchTable, notes: list[str]) -> Pooling:
    words: dict[str, Pooling] = {"SUM": "sum", "MEAN": "mean", "NONE": "none"}
    if table.pooling is None:
        notes.append(f"table '{table.name}': no pooling is given, it is read as a sequence table")
    return words.get((table.pooling or "NONE").upper(), "sum")


def _data_type(table: ArchTable, notes: list[str]) -> DataType:
    given = (table.data_type or "FP32").upper()
    if table.data_type is None or given not in _DATA_TYPES:
        notes.append(f"table '{table.name}': data type {table.data_type} is read as fp32")
    return _DATA_TYPES.get(given, "fp32")


def _optimizer(names: Sequence[str], notes: list[str]) -> Optimizer | None:
    found = {_OPTIMIZERS.get(name.lower()) for name in names}
    if len(found) != 1 or None in found:
        if names:
            notes.append(f"optimizers {', '.join(names)} are not one that foreshard knows: row-wise AdaGrad is assumed")
        return None
    return found.pop()

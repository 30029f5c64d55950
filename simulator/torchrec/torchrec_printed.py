"""From the planner's printed report to a plan file: what it prints, and what can be read off its storage figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshard.simulator.job.scenario import Comms
from foreshard.simulator.job.workload import Table
from foreshard.simulator.torchrec.plan_file import PlanFile
from foreshard.simulator.torchrec.plan_names import unique_names
from foreshard.simulator.torchrec.torchrec_build import plan_of_rows
from foreshard.simulator.torchrec.torchrec_report import PrintedTable, Report
from foreshard.simulator.torchrec.torchrec_shards import ShardedRow
from foreshard.simulator.torchrec.torchrec_storage import PrintedStorage, StorageReading, read_storage

__all__ = ["plan_of_report"]

_WIRE = {2: Comms(forward="fp16", backward="fp16")}  # bf16 has as many bytes
SMALLEST_PRINTED = 0.0005  # the largest number that prints as 0.0 with three digits


def plan_of_report(report: Report, problems: list[str]) -> PlanFile | None:
    """Return the plan of a report, or None after adding to `problems`."""
    problems += report.problems
    if problems:
        return None
    notes = list(report.notes)
    rows = unique_names([table.row for table in report.tables], notes)
    facts = {name: value for name, value in report.facts.items() if name != "tables"}
    world = len(report.ranks) or int(facts.get("world_size", 0)) or None
    batch = int(facts["batch_size"]) if "batch_size" in facts else None
    reading = _read_storage(rows, report.tables, (batch or 0) * (world or 0), notes)
    tables = [_printed_table(row.name, printed, reading) for row, printed in zip(rows, report.tables, strict=True)]
    zeros = sum(table.rounded_to_zero for table in report.tables)
    if zeros:
        notes.append(f"{zeros} tables print 0.0 ids per sample: {SMALLEST_PRINTED} is taken, the most that prints so")
    return plan_of_rows(
        rows,
        tables,
        problems,
        notes,
        source="torchrec planner report",
        group_size=world,
        local_world_size=_local_ranks(rows),
        batch_size=batch,
        optimizer=reading.optimizer if reading else None,
        comms=_WIRE.get(reading.output_bytes) if reading else None,
        planner={
            **facts,
            "ranks": report.ranks,
            "tables": {row.name: _printed_cost(table) for row, table in zip(rows, report.tables, strict=True)},
        },
    )


def _wire_words(reading: StorageReading) -> str:
    comms = _WIRE.get(reading.output_bytes)
    return f", so they and their gradients travel as {comms.forward}" if comms else ""


def _local_ranks(rows: Sequence[ShardedRow]) -> int | None:
    """Ranks of a node, which only a node-wise table shows."""
    sizes = {
        len({shard.row for shard in row.shards}) for row in rows if row.sharding in ("table_row_wise", "grid_shard")
    }
    return sizes.pop() if len(sizes) == 1 else None


def _printed_cost(table: PrintedTable) -> dict[str, Any]:
    sizes = {"hbm_bytes": table.hbm_gib, "ddr_bytes": table.ddr_gib}
    known = {name: value * 2.0**30 for name, value in sizes.items() if value is not None}
    return {**known, "perf_ms": dict(table.perf_ms)}


def _read_storage(
    rows: Sequence[ShardedRow], tables: Sequence[PrintedTable], samples: int, notes: list[str]
) -> StorageReading | None:
    whole_rows = ("table_wise", "column_wise", "table_column_wise")
    printed = {
        row.name: _storage_of(row, table, table.hbm_gib)
        for row, table in zip(rows, tables, strict=True)
        if table.hbm_gib is not None and row.sharding in whole_rows
    }
    reading = read_storage(printed, samples)
    if reading is None:
        notes.append("the report does not tell data types: fp32 is assumed")
    else:
        notes.append(
            f"data types are read off the planner's storage: {len(reading.data_types)} of {len(rows)} tables fit one "
            f"type only, the others are taken as {reading.common} like most; the optimizer that fits is "
            f"{reading.optimizer or 'not certain'}; its vectors have {reading.output_bytes} bytes per element"
            + _wire_words(reading)
        )
    return reading


def _storage_of(row: ShardedRow, table: PrintedTable, hbm_gib: float) -> PrintedStorage:
    return PrintedStorage(
        rows=table.rows,
        columns=table.columns,
        ids_per_sample=table.ids_per_sample,
        bags_per_sample=table.bags_per_sample,
        column_shards=len(row.shards),
        hbm_gib=hbm_gib,
    )


def _printed_table(name: str, table: PrintedTable, reading: StorageReading | None) -> Table:
    """Features share the printed sums equally; their names are not printed."""
    data_type = reading.data_types.get(name, reading.common) if reading else "fp32"
    bags = max(table.bags_per_sample, SMALLEST_PRINTED) / table.features
    ids = max(table.ids_per_sample, SMALLEST_PRINTED) / table.features
    return Table(
        name=name,
        num_embeddings=table.rows,
        embedding_dim=table.columns,
        pooling_factor=ids / bags if table.pooled else ids,
        num_poolings=bags if table.pooled else 1.0,
        pooling="sum" if table.pooled else "none",
        data_type=data_type,
        feature_names=tuple(f"{name}.{index}" for index in range(table.features)) if table.features > 1 else (),
    )

"""From the rows of a TorchRec plan, whatever format listed them, and the tables known for them to a plan file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from foreshard.simulator.files.document import too_many_tables
from foreshard.simulator.job.sharding import CACHE_LOAD_FACTOR, ComputeKernel, Plan, TableSharding
from foreshard.simulator.job.workload import Table
from foreshard.simulator.torchrec.plan_file import PlanFile
from foreshard.simulator.torchrec.plan_names import unique_names
from foreshard.simulator.torchrec.torchrec_shards import ShardedRow, group_ranks, table_sharding

__all__ = ["plan_of_rows"]


def plan_of_rows(
    rows: list[ShardedRow],
    tables: Sequence[Table],
    problems: list[str],
    notes: list[str],
    *,
    source: str,
    group_size: int | None = None,
    **more: Any,
) -> PlanFile | None:
    """Return the plan of rows, or None after adding to `problems`; `tables` are those known.

    Tables that are not known are read off their shards. `more` are fields of the plan file.
    """
    too_many = list(too_many_tables(len(rows)))
    if too_many:
        problems += too_many
        return None
    rows = unique_names(rows, notes)
    known = {table.name: table for table in tables}
    found = [_table_of(row, known.get(row.name), problems, notes) for row in rows]
    missing = [name for name in known if name not in {row.name for row in rows}]
    if missing:
        problems.append(f"the plan does not shard {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}")
    shardings = _shardings(rows, group_size, problems, notes)
    if problems:
        return None
    notes += _kernel_notes(rows)
    return PlanFile(
        tables=tuple(table for table in found if table is not None),
        plan=Plan(tables=tuple((row.name, how) for row, how in zip(rows, shardings, strict=True) if how)),
        source=source,
        world_size=group_size,
        modules=tuple((row.name, row.module) for row in rows if row.module),
        kernels=tuple((row.name, row.kernel) for row in rows),
        notes=tuple(notes),
        **more,
    )


def _table_of(row: ShardedRow, table: Table | None, problems: list[str], notes: list[str]) -> Table | None:
    size = row.size
    if table is None and size is None:
        problems.append(f"table '{row.name}': a {row.sharding} table has no shards to tell its size: give the tables")
        return None
    if table is None:
        rows, columns = size or (0, 0)
        notes.append(f"table '{row.name}': only its size is known, one id per sample, sum pooling and fp32 are assumed")
        return Table(name=row.name, num_embeddings=max(1, rows), embedding_dim=max(1, columns))
    if size is not None and size != (table.num_embeddings, table.embedding_dim):
        problems.append(
            f"table '{row.name}': its shards cover {size[0]} rows x {size[1]} columns, "
            f"but it has {table.num_embeddings} x {table.embedding_dim}"
        )
    return table


def _shardings(
    rows: Sequence[ShardedRow], group_size: int | None, problems: list[str], notes: list[str]
) -> list[TableSharding | None]:
    group = group_ranks(rows)
    position = {rank: place for place, rank in enumerate(group or ())}
    if group:
        notes.append(
            f"ranks {group[0]}, {group[1]}, ... are the global ranks of one 2D sharding group of {len(group)}: they "
            "are read as positions in it (TorchRec's DMPCollection rewrites ranks in place)"
        )
    largest = max((shard.rank for row in rows for shard in row.shards), default=0)
    size = len(group) if group else group_size or largest + 1
    if not group and largest >= size:
        problems.append(f"rank {largest} holds a shard, but the world has ranks 0 to {size - 1}")
    return [table_sharding(row, position, size, problems, notes) for row in rows]


def _kernel_notes(rows: Sequence[ShardedRow]) -> list[str]:
    """What is not said or not known of kernels; a data_parallel table has no shards that could be in host memory."""
    counts = Counter((row.kernel, row.sharding == "data_parallel") for row in rows)
    return [
        f"{count} tables use the compute kernel {kernel}: {_kernel_note(kernel, replicated)}"
        for (kernel, replicated), count in sorted(counts.items())
        if kernel not in ("fused", "dense") and (kernel != "fused_uvm" or replicated)
    ]


def _kernel_note(kernel: str, replicated: bool) -> str:
    if kernel == "fused_uvm_caching" and not replicated:
        return f"a cache_load_factor of {CACHE_LOAD_FACTOR}, FBGEMM's default, is assumed for their cache"
    unknown = "" if kernel in get_args(ComputeKernel) else " (a kernel foreshard does not know)"
    return f"their rows are predicted as if they all lay in HBM{unknown}"

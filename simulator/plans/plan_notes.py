"""What a reader of a resolved plan should know though nothing is wrong: shards that stayed whole or empty."""

from __future__ import annotations

from collections.abc import Sequence

from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.plans.placement import MIN_COLUMNS
from foreshard.simulator.plans.rows import parts_with_rows

__all__ = ["plan_notes"]


def plan_notes(sharded: Sequence[ShardedTable]) -> tuple[str, ...]:
    """Return one sentence for each thing a plan does that its words do not say, naming the first tables."""
    whole = [
        item.table.name
        for item in sharded
        if item.sharding in ("column_wise", "table_column_wise", "grid_shard") and item.col_parts == 1
    ]
    empty = [item.table.name for item in sharded if not parts_with_rows(item).all()]
    notes = []
    if whole:
        notes.append(
            f"{_named(whole)} in one column slice: TorchRec makes none narrower than {MIN_COLUMNS} columns, so two "
            f"need {2 * MIN_COLUMNS}; give column_shards to cut finer"
        )
    if empty:
        notes.append(f"{_named(empty)} with too few rows for so many row shards: some ranks hold none of their rows")
    return tuple(notes)


def _named(names: list[str]) -> str:
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} table{'s' if len(names) > 1 else ''} ({some})"

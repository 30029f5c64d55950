"""Give every table of an imported plan a name of its own: TorchRec's names are unique in a module only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from foreshard.simulator.torchrec.torchrec_shards import ShardedRow

__all__ = ["unique_names"]


def unique_names(rows: Sequence[ShardedRow], notes: list[str]) -> list[ShardedRow]:
    """Return the rows, those that share a name with another under their full name, and numbered if that is shared too.

    Adds to `notes` what was renamed.
    """
    counts = Counter(row.name for row in rows)
    named = [row if counts[row.name] == 1 else replace(row, name=_full(row)) for row in rows]
    shared, seen, out = Counter(row.name for row in named), Counter[str](), []
    for row in named:
        seen[row.name] += 1
        out.append(row if shared[row.name] == 1 else replace(row, name=f"{row.name}#{seen[row.name]}"))
    changed = [new.name for old, new in zip(rows, out, strict=True) if new.name != old.name]
    if changed:
        notes.append(f"{len(changed)} tables share their name with another and are called {', '.join(changed[:4])}")
    return out


def _full(row: ShardedRow) -> str:
    return f"{row.module}.{row.name}" if row.module else row.name

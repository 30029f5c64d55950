"""Ranks in sentences."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ranks_named"]


def ranks_named(ranks: Sequence[int], most: int = 8) -> str:
    """Return "rank 3", or "ranks 0, 1 and 5 more"."""
    listed = ", ".join(map(str, ranks[:most])) + (f" and {len(ranks) - most} more" if len(ranks) > most else "")
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"

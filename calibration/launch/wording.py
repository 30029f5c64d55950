"""Ranks in sentences."""

from __future__ import annotations

import signal
from collections.abc import Sequence

__all__ = ["killed", "ranks_counted", "ranks_named"]


def killed(rank: int, number: int) -> str:
    """Return "rank 3 was ended by SIGKILL ..."; said by who started it, as the rank itself cannot."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"rank {rank} was ended by {name}" + ": was it out of memory (dmesg tells)?" * (number == signal.SIGKILL)


def ranks_counted(number: int) -> str:
    """Return "1 rank" or "4 ranks"."""
    return f"{number} rank" if number == 1 else f"{number} ranks"


def ranks_named(ranks: Sequence[int], most: int = 8) -> str:
    """Return "rank 3", or "ranks 0, 1 and 5 more"."""
    listed = ", ".join(map(str, ranks[:most])) + (f" and {len(ranks) - most} more" if len(ranks) > most else "")
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"

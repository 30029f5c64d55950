"""One part of a report in words."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Section"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One part of a report: a title, a table and sentences below it."""

    title: str
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

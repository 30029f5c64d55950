"""What ranks measured of links, point by point: kept in a file while they measure, so that nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from foreshard.calibration.measure.machine import Bench
from foreshard.simulator.job.program import CollectiveKind
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import replaced

__all__ = ["Beside", "LinkRecord", "RecordFile", "Settings", "Wire"]

Measured = CollectiveKind | Literal["send_recv"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """Bytes that one run put on interfaces: sent and received by each node, and looped inside it, [nodes] each."""

    sent: tuple[float, ...]
    received: tuple[float, ...]
    looped: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """Seconds of every run while all ranks compute; how long all their work took, and would have taken without it."""

    times_s: tuple[float, ...]
    worked_s: float
    alone_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkRecord:
    """One measured point: seconds of every run of a collective of `nbytes` over groups of a shape.

    `pattern` is set for an uneven all_to_all. A send_recv has the two ranks in `ranks`, and half of a ping-pong's time.
    `wire` is what one run put on the interfaces, where that was counted; `beside` how it is beside work, on CPUs.
    """

    kind: Measured
    ranks_per_node: tuple[int, ...]
    groups: int = 1
    groups_per_node: int = 1
    nbytes: int
    times_s: tuple[float, ...]
    pattern: str = ""
    ranks: tuple[int, ...] = ()
    wire: Wire | None = None
    beside: Beside | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells the point from others."""
        return self.kind, self.ranks_per_node, self.groups, self.groups_per_node, self.nbytes, self.pattern, self.ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(Bench):
    """What all points of a file have in common, with whether every rank kept to one core."""

    pinned: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    format: Literal["foreshard-links"] = "foreshard-links"
    schema: Literal[1] = 1
    settings: Settings


class RecordFile:
    """Records as lines of JSON behind a line of settings; an interrupted last line is dropped."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def begin(self, settings: Settings) -> list[LinkRecord]:
        """Return the points that an earlier run with the same settings finished, none if there was none.

        Raises InputError if the file is of other settings, or no such file.
        """
        if not self.path.exists():
            self._write(_line(_Header(settings=settings)))
            return []
        before, records = self.read()
        if before != settings:
            raise InputError(
                f"{_difference(before, settings)}: remove the file, or name another output", where=str(self.path)
            )
        self._write(_line(_Header(settings=settings)), *map(_line, records))
        return records

    def add(self, record: LinkRecord) -> None:
        """Append one point."""
        with self.path.open("ab") as file:
            file.write(_line(record))

    def read(self) -> tuple[Settings, list[LinkRecord]]:
        """Return the settings and all whole points. Raises InputError if it is no such file."""
        try:
            first, *rest = self.path.read_bytes().splitlines()
            header = msgspec.json.decode(first, type=_Header)
            records = list(_whole(rest))
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", where=str(self.path)) from error
        except (ValueError, msgspec.MsgspecError):
            advice = "foreshard calibrate links writes one, remove this"
            raise InputError(f"is no file of measured links: {advice}", where=str(self.path)) from None
        return header.settings, records

    def _write(self, *lines: bytes) -> None:
        with replaced(self.path) as part:
            part.write_bytes(b"".join(lines))


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _whole(lines: list[bytes]) -> Iterator[LinkRecord]:
    for number, line in enumerate(lines):
        try:
            yield msgspec.json.decode(line, type=LinkRecord)
        except msgspec.MsgspecError:
            if number < len(lines) - 1:
                raise


def _difference(before: Settings, now: Settings) -> str:
    """The first setting that differs, in words."""
    for name in Settings.__dataclass_fields__:
        if getattr(before, name) != getattr(now, name):
            return f"was begun with {name} = {getattr(before, name)!r}, now it is {getattr(now, name)!r}"
    return ""

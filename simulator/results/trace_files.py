"""The files of a timeline folder: what foreshard wrote there before gives way, other files are never touched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from foreshard.topologies.errors import InputError
from foreshard.topologies.output import check_folder

__all__ = ["SYNC_FOLDER", "check_trace_folder", "remove_stale", "trace_name"]

SYNC_FOLDER = "sync_step"  # the timelines of steps in which replicas synchronise, where not every step is one
_NAME = re.compile(r"rank\d{4,}\.pt\.trace\.json")
_MARK = b'"foreshard": {'
_HEAD = 1 << 20  # bytes in which the mark stands: it comes before the events


def trace_name(rank: int, world_size: int) -> str:
    """The file name of one rank's timeline, "rank0007.pt.trace.json"."""
    return f"rank{rank:0{max(4, len(str(world_size - 1)))}d}.pt.trace.json"


def check_trace_folder(folder: Path) -> None:
    """Return if timelines can be written into `folder`; nothing is created yet.

    Raises InputError if it cannot be written or holds a file with a timeline's name that foreshard did not write.
    """
    for place in (folder, folder / SYNC_FOLDER):
        check_folder(place)
        foreign = [path.name for path in _timelines(place) if not _is_own(path)]
        if foreign:
            count = f"{foreign[0]} and {len(foreign) - 1} more" if len(foreign) > 1 else foreign[0]
            raise InputError(f"{place}: holds {count}, which foreshard did not write: name another folder")


def remove_stale(folder: Path, written: Iterable[Path]) -> int:
    """Remove the timelines of an earlier run from `folder`, all but those just `written`; return how many there were.

    A file without foreshard's mark is left alone.
    """
    kept = set(written)
    stale = [path for place in (folder, folder / SYNC_FOLDER) for path in _timelines(place) if path not in kept]
    stale = [path for path in stale if _is_own(path)]
    for path in stale:
        path.unlink(missing_ok=True)
    below = folder / SYNC_FOLDER
    if any(path.parent == below for path in stale) and not any(below.iterdir()):
        below.rmdir()
    return len(stale)


def _timelines(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if _NAME.fullmatch(path.name))


def _is_own(path: Path) -> bool:
    """Whether a file bears foreshard's mark; a link or a folder is nobody's timeline."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return _MARK in file.read(_HEAD)

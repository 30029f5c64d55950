"""The files that an import reads: what each of them is, its digest and its date, and its content unpacked."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal, cast

from foreshard.simulator.job.suggestions import shown_path
from foreshard.topologies.errors import InputError

__all__ = ["SourceFile", "named", "opened", "sources"]

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_TAR_AT = slice(257, 262)  # where "ustar" stands in the first block of an archive (POSIX.1-1988)
_HEAD = 1 << 12
_TRACE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*(?:[{\]]|\Z))")  # not "[1,0]<stdout>:", as mpirun begins lines
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file: its name as messages and the profile have it, what it is, SHA-256, and when it was last changed."""

    path: Path
    kind: Literal["log", "trace"]
    sha256: str
    modified: datetime

    @property
    def name(self) -> str:
        """The path as it was given, short enough for a message."""
        return shown_path(self.path)


def sources(paths: Sequence[Path]) -> list[SourceFile]:
    """Return what each of the files is. Raises InputError with every one that cannot be read, or is given twice."""
    found: list[SourceFile] = []
    problems: list[str] = []
    for path in paths:
        try:
            found.append(_source(path))
        except InputError as error:
            problems += named(shown_path(path), error)
    first: dict[str, SourceFile] = {}
    for source in found:
        before = first.setdefault(source.sha256, source)
        if before is not source:
            problems.append(f"{source.name}: has the content of {before.name}: give every measurement once")
    if problems:
        raise InputError(problems)
    return found


def named(name: str, error: InputError) -> list[str]:
    """The problems of one file, each behind its name."""
    return [f"{name}: {problem}" for problem in error.problems]


def _source(path: Path) -> SourceFile:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        modified = datetime.fromtimestamp(int(path.stat().st_mtime), UTC)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return SourceFile(path=path, kind=_kind(path), sha256=digest, modified=modified)


def _kind(path: Path) -> Literal["log", "trace"]:
    with opened(path) as (content, _):
        head = content.read(_HEAD)
    if not head.strip():
        raise InputError("is empty: give a log of nccl-tests or a Kineto trace")
    if head[_TAR_AT] == b"ustar" or head.startswith(_ZIP):
        raise InputError("is an archive: unpack it and give the logs or traces in it")
    return "trace" if _TRACE.match(head) else "log"


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Give the content of a file, unpacked if gzip packed it, and the file itself, whose place tells the progress.

    Raises InputError if it cannot be read or is cut off.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            yield (cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file), file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"cannot be unpacked ({error}): is the file cut off?") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None

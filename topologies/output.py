"""Output files: an unwritable path is refused before any work starts, and no file is ever left half written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from foreshard.topologies.errors import InputError

__all__ = ["check_folder", "check_writable", "make_folder", "replaced", "write_text"]


def check_writable(path: str | Path) -> None:
    """Return if a file can be written at `path`; raises InputError that says why not and what to do."""
    target = Path(path)
    if os.path.isdir(target):
        raise InputError(f"{target}: is a folder: name a file in it")
    if os.path.exists(target) and not os.path.isfile(target):
        raise InputError(f"{target}: is not a regular file, and would be replaced: name another file")
    if not os.path.isdir(target.parent):
        raise InputError(f"{target}: the folder {target.parent} does not exist: create it or name another")
    try:
        _check_name(target)
        with tempfile.TemporaryFile(dir=target.parent):
            return
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from None


def _check_name(target: Path) -> None:
    """Raises OSError if no file of such a name can be, as it is too long."""
    with suppress(FileNotFoundError):
        target.lstat()


def check_folder(path: str | Path) -> None:
    """Return if files can be written into the folder `path`, or it could be created; raises InputError."""
    folder = Path(path)
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):
        which = "name a folder" if there == folder else f"no folder can be below it: name another than {folder}"
        raise InputError(f"{there}: is a file: {which}")
    try:
        _check_name(there / folder.name)
        with tempfile.TemporaryFile(dir=there):
            return
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None


def make_folder(path: str | Path) -> None:
    """Create the folder `path`, and those above it, if need be; raises InputError."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(f"{folder}: is a file: name a folder") from None
    except OSError as error:
        raise InputError(f"{folder}: cannot be created: {error.strerror or error}") from None


@contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`, with its suffix; at the end it takes the place of `path` at once.

    On any error `path` stays as it was and the temporary file is gone. Raises InputError if `path` is unwritable.
    """
    target = Path(path)
    check_writable(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem[:20]}-", suffix=target.suffix)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(_usual_mode())
        part.replace(target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _usual_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all; raises InputError if the path cannot be written."""
    with replaced(path) as part:
        part.write_text(text, encoding="utf-8")

"""Measured cases, kept in a file while a testbed is up, so that nothing is run twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from foreshard.calibration.validation.records import MeasuredCase
from foreshard.topologies.errors import InputError

__all__ = ["CaseFile"]


class CaseFile:
    """A case as JSON in each line; a last line that was interrupted is dropped."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read(self, seed: int) -> list[MeasuredCase]:
        """Return the cases whose ids were drawn with `seed`, none if there is no file.

        Raises InputError if it is no such file.
        """
        return [case for case in self._cases() if case.seed == seed]

    def begin(self) -> None:
        """Cut off what was interrupted, so that the next case has a line of its own."""
        if self.path.exists():
            os.truncate(self.path, len(self._whole()))

    def add(self, case: MeasuredCase) -> None:
        """Append one case."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(case) + b"\n")

    def _cases(self) -> Iterator[MeasuredCase]:
        for number, line in enumerate(self._whole().splitlines(), start=1):
            try:
                yield msgspec.json.decode(line, type=MeasuredCase)
            except msgspec.MsgspecError as error:
                raise InputError(
                    f"line {number} is no measured case ({error}): remove the file", where=str(self.path)
                ) from None

    def _whole(self) -> bytes:
        """All lines that have an end."""
        content = self.path.read_bytes() if self.path.exists() else b""
        return content[: content.rfind(b"\n") + 1]

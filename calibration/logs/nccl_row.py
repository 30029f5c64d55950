"""One checked row of an nccl-tests log."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NcclRow"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclRow:
    """One size: `nbytes` as nccl-tests counts it, `time_s`, algbw and busbw in bytes/s, and the log's line.

    `time_s` is out-of-place, or in-place where only the first row of a log is far slower (connections are set up
    in it). `wrong` is what validation found, None where it was off. A row that is not `whole` ends with the file,
    perhaps within its busbw. `label` stands in front of the size.
    """

    line: int
    nbytes: float
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: float | None
    whole: bool = True
    label: str = ""

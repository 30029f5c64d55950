"""Rows of an nccl-tests log checked against themselves: slips of the columns are put right, the rest is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foreshard.calibration.logs.nccl_lines import Cells, LogRow
from foreshard.calibration.logs.nccl_row import NcclRow
from foreshard.calibration.logs.nccl_validation import out_of_place_problem

__all__ = ["checked_row", "without_setup"]

_TOLERANCE = 0.011  # of algbw and busbw, beyond half a unit of the last printed digit


def checked_row(row: LogRow, problems: list[str], notes: list[str]) -> NcclRow | None:
    """The row in bytes, seconds and bytes/s, put right with a note where it can be; None with a problem where not."""
    wrong = out_of_place_problem(row)
    if wrong:
        problems.append(wrong)
        return None
    cells = _put_right(row, notes)
    rate = row.nbytes / cells.time_s
    if not _agree(cells.algbw, rate):
        problems.append(
            f"line {row.line}: {row.nbytes:.0f} B in {cells.time_s * 1e6:g} us are {rate / 1e9:.2f} GB/s, but algbw "
            f"says {cells.algbw / 1e9:.2f}: the row is not one nccl-tests printed"
        )
        return None
    return NcclRow(
        line=row.line,
        nbytes=row.nbytes,
        time_s=cells.time_s,
        algbw_bytes_per_s=cells.algbw,
        busbw_bytes_per_s=cells.busbw,
        wrong=cells.wrong,
        whole=row.whole,
        label=row.label,
    )


def _put_right(row: LogRow, notes: list[str]) -> Cells:
    """The cells with bandwidths in their columns and in bytes, if size / time tells that they were not."""
    cells, rate = row.out_of_place, row.nbytes / row.out_of_place.time_s
    if _agree(cells.algbw, rate):
        return cells
    if _agree(cells.algbw / 8, rate):
        notes.append(
            f"line {row.line}: algbw and busbw are gigabits per second, 8 times size / time; divided by 8, since "
            "nccl-tests prints gigabytes"
        )
        return replace(cells, algbw=cells.algbw / 8, busbw=cells.busbw / 8)
    if _agree(cells.busbw, rate):
        notes.append(
            f"line {row.line}: algbw and busbw are swapped; put right, since size / time = {cells.busbw / 1e9:.2f}"
        )
        return replace(cells, algbw=cells.busbw, busbw=cells.algbw)
    return cells


def _agree(printed: float, computed: float) -> bool:
    return abs(printed - computed) <= 0.006e9 + _TOLERANCE * computed


def without_setup(rows: Sequence[NcclRow], first: LogRow, notes: list[str]) -> list[NcclRow]:
    """The rows without the time in which connections are set up, which may lie in the first one.

    It is in it if out of place took more than twice as long as in place, or, where that is not told, as the next row
    with as many bytes or more: then the time in place is taken, or the row left out.
    """
    head, again = rows[0], first.in_place
    if head.line != first.line:
        return list(rows)
    if again is not None and not _agree(again.algbw, head.nbytes / again.time_s):
        again = None
    if again is not None and head.time_s > 2 * again.time_s:
        notes.append(
            f"line {head.line}: out of place took {head.time_s / again.time_s:.1f} times as long as in place, as the "
            "first row of a log does while connections are set up; the time in place is taken"
        )
        head = replace(head, time_s=again.time_s, algbw_bytes_per_s=again.algbw, busbw_bytes_per_s=again.busbw)
    elif again is None and len(rows) > 1 and rows[1].nbytes >= head.nbytes and head.time_s > 2 * rows[1].time_s:
        notes.append(
            f"line {head.line}: took {head.time_s / rows[1].time_s:.1f} times as long as the next row with no fewer "
            "bytes, as the first row of a log does while connections are set up; it is left out"
        )
        return list(rows[1:])
    return [head, *rows[1:]]

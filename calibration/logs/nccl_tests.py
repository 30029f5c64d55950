"""Logs of nccl-tests as data: every row checked against itself, what cannot be trusted refused with line and reason.

A row must satisfy the tool's own definitions (NVIDIA/nccl-tests PERFORMANCE.md): algbw = size / time, and
busbw / algbw is 2 (n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and alltoall, else 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from foreshard.calibration.logs.nccl_lines import DeviceLine, LogRow, ParsedLines, parse_lines
from foreshard.calibration.logs.nccl_ratio import kinds_and_ranks
from foreshard.calibration.logs.nccl_row import NcclRow
from foreshard.topologies.errors import InputError

__all__ = ["NcclLog", "NcclRow", "parse_nccl_log", "read_nccl_log"]

_TOLERANCE = 0.011  # of algbw and busbw, beyond half a unit of the last printed digit


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclLog:
    """A log: which collective it can be, its ranks, its rows and what was found on the way, one sentence each.

    `ranks` comes from the ratio of busbw and algbw where it tells, else from the list of devices; None if neither
    does, or if rows differ in it.
    """

    kinds: tuple[str, ...]
    ranks: int | None
    rows: tuple[NcclRow, ...]
    notes: tuple[str, ...]

    @property
    def kind(self) -> str | None:
        """The collective, if there is only one it can be."""
        return self.kinds[0] if len(self.kinds) == 1 else None


def read_nccl_log(path: str | Path) -> NcclLog:
    """Return the log in a file. Raises InputError if it cannot be read or holds no row that can be trusted."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror or error}", where=str(path)) from error
    return parse_nccl_log(text, where=str(path))


def parse_nccl_log(text: str, where: str = "log") -> NcclLog:
    """Return the log in `text`. Raises InputError with every reason to distrust it, each with its line."""
    lines = parse_lines(text)
    problems = [*lines.problems, *_device_problems(lines.devices)]
    rows, notes = _consistent(lines, problems)
    if problems:
        raise InputError(problems, where=where)
    if not rows:
        raise InputError(_no_rows(lines), where=where)
    listed = max((device.rank for device in lines.devices), default=-1) + 1
    kinds, ranks = kinds_and_ranks(rows, lines.tool, lines.rows[0].redop, listed, notes)
    if listed == 1 or all(row.busbw_bytes_per_s == 0 < 1e9 < row.algbw_bytes_per_s for row in rows):
        raise InputError(
            f"line {rows[0].line}: one rank only, so nothing crossed a link: build nccl-tests with MPI=1 and start "
            "several ranks, or give it several GPUs with -g",
            where=where,
        )
    return NcclLog(kinds=kinds, ranks=ranks, rows=tuple(rows), notes=(*lines.notes, *notes))


def _no_rows(lines: ParsedLines) -> str:
    if lines.first_foreign is None:
        return (
            "it holds no row of nccl-tests: give the output of all_reduce_perf, alltoall_perf or another of its tools"
        )
    number, content = lines.first_foreign
    return (
        f"line {number}: {content[:60]!r} is not a row of nccl-tests, and no other line is one: give the output of "
        "all_reduce_perf, alltoall_perf or another of its tools"
    )


def _device_problems(devices: Iterable[DeviceLine]) -> list[str]:
    devices = list(devices)
    problems = []
    by_rank = Counter(device.rank for device in devices)
    for rank, count in by_rank.items():
        if count > 1:
            line = [device.line for device in devices if device.rank == rank][1]
            problems.append(
                f"line {line}: rank {rank} appears {count} times: independent runs of one rank each, as a tool built "
                "without MPI=1 starts them; build it with MPI=1 and run again"
            )
    places = Counter((device.host, device.device, device.bus) for device in devices)
    # Bus 0x00 is what hides in a container; then the device number alone tells.
    for (host, number, _), count in places.items():
        if count > 1 and max(by_rank.values(), default=1) == 1:
            line = [device.line for device in devices if (device.host, device.device) == (host, number)][1]
            problems.append(
                f"line {line}: {count} ranks share device {number} of {host}: give every rank a GPU of its own"
            )
    return problems


def _consistent(lines: ParsedLines, problems: list[str]) -> tuple[list[NcclRow], list[str]]:
    """Rows that agree with themselves; reasons why others do not are added to `problems`."""
    notes: list[str] = []
    rows = []
    for index, row in enumerate(lines.rows):
        if row.nbytes == 0:
            continue
        checked = _check(row, problems, notes)
        if checked is not None:
            rows.append(_without_setup(checked, row) if index == lines.first_sized else checked)
    return rows, notes


def _check(row: LogRow, problems: list[str], notes: list[str]) -> NcclRow | None:
    wrong = row.out_of_place.wrong
    # Old versions print the largest deviation instead, 2e-07 or so.
    if wrong is not None and wrong >= 1:
        problems.append(
            f"line {row.line}: {wrong:g} wrong values: the data did not arrive as sent, so its time means nothing; "
            "find the fault before measuring"
        )
        return None
    cells = row.out_of_place
    if not _agree(cells.algbw, row.nbytes / cells.time_s) and _agree(cells.busbw, row.nbytes / cells.time_s):
        notes.append(
            f"line {row.line}: algbw and busbw are swapped; put right, since size / time = {cells.busbw / 1e9:.2f}"
        )
        cells = replace(cells, algbw=cells.busbw, busbw=cells.algbw)
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
        wrong=wrong,
        whole=row.whole,
        label=row.label,
    )


def _agree(printed: float, computed: float) -> bool:
    return abs(printed - computed) <= 0.006e9 + _TOLERANCE * computed


def _without_setup(row: NcclRow, log_row: LogRow) -> NcclRow:
    """The first row with the in-place time, if out-of-place took more than twice as long."""
    again = log_row.in_place
    if again is None or log_row.redop in ("none", "") or row.time_s <= 2 * again.time_s:
        return row
    return replace(row, time_s=again.time_s, algbw_bytes_per_s=again.algbw, busbw_bytes_per_s=again.busbw)

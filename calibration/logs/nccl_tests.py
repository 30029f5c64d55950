"""Logs of nccl-tests as data: every row checked against itself, what cannot be trusted refused with line and reason.

A row must satisfy the tool's own definitions (NVIDIA/nccl-tests PERFORMANCE.md): algbw = size / time, and
busbw / algbw is 2 (n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and alltoall, else 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from foreshard.calibration.logs.nccl_checks import checked_row, without_setup
from foreshard.calibration.logs.nccl_lines import DeviceLine, ParsedLines, parse_lines
from foreshard.calibration.logs.nccl_ratio import kinds_and_ranks
from foreshard.calibration.logs.nccl_row import NcclRow
from foreshard.calibration.logs.nccl_validation import footer_problems, in_place_problems
from foreshard.topologies.errors import InputError

__all__ = ["NcclLog", "NcclRow", "parse_nccl_log", "read_nccl_log"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclLog:
    """A log: which collective it can be, its ranks, its rows and what was found on the way, one sentence each.

    `ranks` comes from the ratio of busbw and algbw where it tells, else from the list of devices; None if neither
    does, or if rows differ in it. `devices` are the lines of the device list that are there; `versions` of nccl and
    nccl-tests, and the number of `runs` that each time is the mean of, where the log tells.
    """

    kinds: tuple[str, ...]
    ranks: int | None
    rows: tuple[NcclRow, ...]
    notes: tuple[str, ...]
    devices: tuple[DeviceLine, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    runs: int | None = None

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
    notes = list(lines.notes)
    problems = [*lines.problems, *_device_problems(lines.devices)]
    sized = [row for row in lines.rows if row.nbytes > 0]
    rows = [checked for row in sized if (checked := checked_row(row, problems, notes)) is not None]
    if not rows:
        raise InputError(problems or [*footer_problems(lines.footers)] or _no_rows(lines), where=where)
    rows = without_setup(rows, sized[0], notes)
    listed = max((device.rank for device in lines.devices), default=-1) + 1
    problems.extend(_one_rank(rows, listed))
    kinds, ranks = kinds_and_ranks(rows, lines.tool, lines.rows[0].redop, listed, notes)
    problems.extend(in_place_problems(sized, kinds, notes))
    if problems := problems or [*footer_problems(lines.footers)]:
        raise InputError(problems, where=where)
    return NcclLog(
        kinds=kinds,
        ranks=ranks,
        rows=tuple(rows),
        notes=tuple(notes),
        devices=tuple(lines.devices),
        versions=lines.versions,
        runs=lines.runs,
    )


def _one_rank(rows: Iterable[NcclRow], listed: int) -> Iterator[str]:
    """One sentence if the log is of a single rank: by its list, or by a busbw of 0 where bytes were moved."""
    still = [row for row in rows if row.busbw_bytes_per_s == 0 and row.algbw_bytes_per_s >= 0.1e9]
    if listed == 1 or still:
        yield (
            f"line {next(iter(still or rows)).line}: one rank only, so nothing crossed a link: build nccl-tests with "
            "MPI=1 and start several ranks, or give it several GPUs with -g"
        )


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

"""The lines of an nccl-tests log: prefixes stripped, noise skipped, rows and device lines split into cells."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Cells", "DeviceLine", "LogRow", "ParsedLines", "parse_lines"]

_DATA_TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "fp8_e4m3",
    "fp8_e5m2", "f8e4m3", "f8e5m2",
)  # fmt: skip
_OPERATIONS = ("sum", "prod", "max", "min", "avg", "mulsum", "none", "all")
# "[1,0]<stdout>:", "0: ", "[0] ", a time stamp; each may be indented, several may follow each other.
_PREFIX = re.compile(
    r"^\s*(?:\[\d+,\s*\d+\]<std(?:out|err)>:|\d{1,5}:(?=\s)|\[\d+\](?=\s)|\d{4}-\d\d-\d\d[T ][\d:.,]+Z?)"
)
_INSIDE = re.compile(r"\[\d+\](?=\s)")
_TOOL = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv|gather|scatter)_perf")
_DEVICE = re.compile(
    r"Rank\s+(?P<rank>\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+)\s+device\s+(?P<device>\d+)\s+\[(?P<bus>[^\]]*)\]"
)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?\Z")


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one placement: time in seconds, algbw and busbw in bytes/s, wrong values (None: not validated)."""

    time_s: float
    algbw: float
    busbw: float
    wrong: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRow:
    """One row: out-of-place cells, in-place cells where they are whole, and a label in front of the size, if any.

    It is not `whole` if the file ends with its busbw, which may lack digits then.
    """

    line: int
    nbytes: float
    redop: str
    out_of_place: Cells
    in_place: Cells | None
    whole: bool = True
    label: str = ""


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """One line of the device list."""

    line: int
    rank: int
    host: str
    device: int
    bus: str


@dataclass(slots=True)
class ParsedLines:
    """What a log's lines hold: the tool by its own words, devices, rows, problems and notes, each with its line."""

    tool: str | None = None
    devices: list[DeviceLine] = field(default_factory=list)
    rows: list[LogRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first_foreign: tuple[int, str] | None = None
    header: str | None = None
    last_line: int = 0

    @property
    def first_sized(self) -> int:
        """Index of the first row with bytes."""
        return next((index for index, row in enumerate(self.rows) if row.nbytes > 0), -1)


def parse_lines(text: str) -> ParsedLines:
    """Return what the lines of a log hold."""
    lines = text.splitlines()
    parsed = ParsedLines(last_line=len(lines))
    for number, raw in enumerate(lines, start=1):
        _parse_line(parsed, number, _strip(raw))
    return parsed


def _strip(line: str) -> str:
    while match := _PREFIX.match(line):
        line = line[match.end() :]
    return _INSIDE.sub(" ", line)


def _parse_line(parsed: ParsedLines, number: int, line: str) -> None:
    if tool := _TOOL.search(line):
        parsed.tool = tool[1]
    if device := _DEVICE.search(line):
        parsed.devices.append(
            DeviceLine(number, int(device["rank"]), device["host"], int(device["device"]), device["bus"])
        )
    elif {"size", "algbw", "busbw"} <= set(line.replace("#", " ").split()):
        parsed.header = line
    elif not line.lstrip().startswith("#"):
        _parse_row(parsed, number, line)


def _parse_row(parsed: ParsedLines, number: int, line: str) -> None:
    tokens = line.split()
    at = next((i for i, token in enumerate(tokens) if token in _DATA_TYPES), None)
    if at is None or at < 2:
        _parse_untyped(parsed, number, line, tokens)
        return
    size, rest = tokens[at - 2], tokens[at + 1 :]
    if not size.isdigit():
        parsed.problems.append(f"line {number}: the size is {size!r}, not a number of bytes: a row filled in by hand")
        return
    redop = rest.pop(0) if rest and rest[0] in _OPERATIONS else ""
    if _has_root(parsed, rest):
        rest.pop(0)
    label = " ".join(tokens[: at - 2])
    _add(parsed, number, float(size), redop, rest, label)


def _has_root(parsed: ParsedLines, cells: list[str]) -> bool:
    """Whether the first cell is the root's rank: never to be mistaken for a time printed without decimals."""
    if not cells or not re.fullmatch(r"-?\d+", cells[0]):
        return False
    if parsed.header is not None:
        return "root" in parsed.header.split()
    return cells[0] == "-1" or len(cells) in (9, 5)


def _add(parsed: ParsedLines, number: int, nbytes: float, redop: str, cells: list[str], label: str = "") -> None:
    odd = [cell for cell in cells if not _NUMBER.match(cell) and cell != "N/A"]
    if odd == cells[-1:] and number == parsed.last_line:
        odd, cells = [], cells[:-1]  # the file ends in this cell
    if odd:
        parsed.problems.append(
            f"line {number}: {odd[0]!r} stands where a number belongs: give the row as it was printed"
        )
        return
    first, second = _cells(cells[:4]), _cells(cells[4:8])
    if first is None:
        parsed.notes.append(f"line {number}: the row is cut off before its bandwidths and is left out")
        return
    whole = number < parsed.last_line or len(cells) > 3
    parsed.rows.append(
        LogRow(line=number, nbytes=nbytes, redop=redop, out_of_place=first, in_place=second, whole=whole, label=label)
    )


def _cells(cells: list[str]) -> Cells | None:
    """Cells of one placement; None where the row ends before busbw, or in it."""
    if len(cells) < 3 or "N/A" in cells[:3]:
        return None
    time, algbw, busbw = (float(cell) for cell in cells[:3])
    whole = len(cells) > 3 or "." in cells[2]
    if not whole or time <= 0:
        return None
    wrong = float(cells[3]) if len(cells) > 3 and cells[3] != "N/A" else None
    return Cells(time * 1e-6, algbw * 1e9, busbw * 1e9, wrong)


def _parse_untyped(parsed: ParsedLines, number: int, line: str, tokens: list[str]) -> None:
    """A row of a tool that prints no data type (mscclpp), or no row at all."""
    typed = parsed.header is None or "type" in parsed.header.split()
    numbers = [token for token in tokens if _NUMBER.match(token)]
    if not typed and len(numbers) == len(tokens) >= 6 and tokens[0].isdigit() and tokens[1].isdigit():
        _add(parsed, number, float(tokens[0]), "", tokens[2:])
    elif len(tokens) >= 4 and len(numbers) == len(tokens):
        parsed.notes.append(f"line {number}: half a row, without its size, is left out")
    elif tokens and parsed.first_foreign is None and not line.lstrip().startswith(("...", "$")):
        parsed.first_foreign = (number, line.strip())

"""The lines of an nccl-tests log: prefixes stripped, noise skipped, rows and device lines split into cells."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Cells", "DeviceLine", "Footer", "LogRow", "ParsedLines", "parse_lines"]

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
_TOOL = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoallv?|broadcast|reduce|sendrecv|gather|scatter|hypercube)_perf"
)
_FOOTER = re.compile(r"Out of bounds values\s*:\s*(?P<count>\d+)\s*(?P<verdict>OK|FAILED)?", re.IGNORECASE)
_DEVICE = re.compile(
    r"Rank\s+(?P<rank>\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+)\s+device\s+(?P<device>\d+)\s+\[(?P<bus>[^\]]*)\]"
    r"\s*(?P<name>[^\n]*)"
)
_VERSIONS = {
    "nccl-tests": re.compile(r"nccl-tests version (\d[\w.+-]*)"),
    "nccl": re.compile(r"(?:NCCL version |nccl-library=)(\d[\d.]*)"),
}
_RUNS = re.compile(r"(?<!warmup )(?<!agg )\biters: (\d+)")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?\Z")


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one placement: time in seconds, algbw and busbw in bytes/s, wrong values (None: not validated).

    Old versions print the largest deviation in place of the number of wrong values; then `deviation` is true.
    """

    time_s: float
    algbw: float
    busbw: float
    wrong: float | None
    deviation: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRow:
    """One row: out-of-place cells, in-place cells where they are whole, and a label in front of the size, if any.

    It is not `whole` if the file ends with its busbw, which may lack digits then.
    """

    line: int
    nbytes: float
    data_type: str
    redop: str
    out_of_place: Cells
    in_place: Cells | None
    whole: bool = True
    label: str = ""


@dataclass(frozen=True, slots=True)
class _Head:
    """What stands in front of a row's cells."""

    line: int
    nbytes: float
    data_type: str
    redop: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """One line of the device list; `name` is the GPU's model, "" where the line does not tell."""

    line: int
    rank: int
    host: str
    device: int
    bus: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Footer:
    """The line in which the tool sums up its validation: out of how many bounds values were, and that it failed."""

    line: int
    count: int
    failed: bool


@dataclass(slots=True)
class ParsedLines:
    """What a log's lines hold: the tool by its own words, devices, rows, problems and notes, each with its line.

    `versions` of nccl-tests and nccl, where lines tell; `runs` is how many runs each time is the mean of.
    """

    tool: str | None = None
    devices: list[DeviceLine] = field(default_factory=list)
    footers: list[Footer] = field(default_factory=list)
    rows: list[LogRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first_foreign: tuple[int, str] | None = None
    header: str | None = None
    last_line: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    runs: int | None = None


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
    _parse_settings(parsed, line)
    if device := _DEVICE.search(line):
        rank, ordinal = int(device["rank"]), int(device["device"])
        name = device["name"].strip()
        parsed.devices.append(DeviceLine(number, rank, device["host"], ordinal, device["bus"], name))
    elif footer := _FOOTER.search(line):
        count, verdict = int(footer["count"]), (footer["verdict"] or "").upper()
        parsed.footers.append(Footer(number, count, verdict == "FAILED" or (count > 0 and not verdict)))
    elif {"size", "algbw", "busbw"} <= set(line.replace("#", " ").split()):
        parsed.header = line
    elif not line.lstrip().startswith("#"):
        _parse_row(parsed, number, line)


def _parse_settings(parsed: ParsedLines, line: str) -> None:
    """Versions and the number of runs, where a line tells them; the last one holds."""
    if "ersion" in line:
        for name, pattern in _VERSIONS.items():
            if found := pattern.search(line):
                parsed.versions[name] = _dotted(found[1])
    elif "iters: " in line and (runs := _RUNS.search(line)):
        parsed.runs = int(runs[1])


def _dotted(version: str) -> str:
    """The version; nccl-library=22807 is 2.28.7 (nccl.h, NCCL_VERSION since 2.9: 10000 major + 100 minor + patch)."""
    if not version.isdigit() or len(version) < 5:
        return version.rstrip(".")
    code = int(version)
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


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
    head = _Head(number, float(size), tokens[at], redop, label=" ".join(tokens[: at - 2]))
    _add(parsed, head, rest)


def _has_root(parsed: ParsedLines, cells: list[str]) -> bool:
    """Whether the first cell is the root's rank: never to be mistaken for a time printed without decimals."""
    if not cells or not re.fullmatch(r"-?\d+", cells[0]):
        return False
    if parsed.header is not None:
        return "root" in parsed.header.split()
    return cells[0] == "-1" or len(cells) in (9, 5)


def _add(parsed: ParsedLines, head: _Head, cells: list[str]) -> None:
    odd = [cell for cell in cells if not _NUMBER.match(cell) and cell != "N/A"]
    last = head.line == parsed.last_line
    if odd == cells[-1:] and last:
        odd, cells = [], cells[:-1]  # the file ends in this cell
    if odd:
        parsed.problems.append(
            f"line {head.line}: {odd[0]!r} stands where a number belongs: give the row as it was printed"
        )
        return
    first, second = _cells(parsed, cells[:4]), _cells(parsed, cells[4:8])
    if first is None:
        parsed.notes.append(f"line {head.line}: the row is cut off before its bandwidths and is left out")
        return
    parsed.rows.append(
        LogRow(
            line=head.line,
            nbytes=head.nbytes,
            data_type=head.data_type,
            redop=head.redop,
            out_of_place=first,
            in_place=second,
            whole=not last or len(cells) > 3,
            label=head.label,
        )
    )


def _cells(parsed: ParsedLines, cells: list[str]) -> Cells | None:
    """Cells of one placement; None where the row ends before busbw, or in it."""
    if len(cells) < 3 or "N/A" in cells[:3]:
        return None
    time, algbw, busbw = (float(cell) for cell in cells[:3])
    whole = len(cells) > 3 or "." in cells[2]
    if not whole or time <= 0:
        return None
    # Some forks print -1 for what they do not validate.
    wrong = float(cells[3]) if len(cells) > 3 and cells[3] != "N/A" and float(cells[3]) >= 0 else None
    deviation = wrong is not None and _is_deviation(parsed, cells[3])
    return Cells(time * 1e-6, algbw * 1e9, busbw * 1e9, wrong, deviation)


def _is_deviation(parsed: ParsedLines, cell: str) -> bool:
    """Whether the last cell is a deviation, as old versions print it, always with an exponent: 2e-07, 1e+00."""
    if parsed.header is not None:
        return "error" in parsed.header.split()
    return "e" in cell.lower() and float(cell) < 1e6  # counts get an exponent from a million on (%g)


def _parse_untyped(parsed: ParsedLines, number: int, line: str, tokens: list[str]) -> None:
    """A row of a tool that prints no data type (mscclpp), or no row at all."""
    typed = parsed.header is None or "type" in parsed.header.split()
    numbers = [token for token in tokens if _NUMBER.match(token)]
    if not typed and len(numbers) == len(tokens) >= 6 and tokens[0].isdigit() and tokens[1].isdigit():
        _add(parsed, _Head(number, float(tokens[0]), "", ""), tokens[2:])
    elif len(tokens) >= 4 and len(numbers) == len(tokens):
        parsed.notes.append(f"line {number}: half a row, without its size, is left out")
    elif tokens and parsed.first_foreign is None and not line.lstrip().startswith(("...", "$")):
        parsed.first_foreign = (number, line.strip())

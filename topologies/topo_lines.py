"""The lines of `nvidia-smi topo -m`: header, rows split into codes and what follows them, legend, second tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["TopoLines", "TopoRow", "is_gpu", "read_lines"]

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = r"GPU\d{1,3}|NIC\d{1,3}|mlx\d_(?:bond_)?\d{1,3}"
_OTHER_NIC = re.compile(r"(?:ib|roce|rdma|efa|bnxt|hfi|irdma|qedr|cxgb)[\w.-]*\d", re.IGNORECASE | re.ASCII)
_LABEL = re.compile(rf"\s*({_DEVICE}|{_OTHER_NIC.pattern})(?=\s|$)", re.IGNORECASE | re.ASCII)
_CODE = re.compile(r"NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS|SOC|X", re.ASCII)
_P2P = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
_AFFINITY = re.compile(r"[\d,-]+|N/A", re.ASCII)
_COLUMNS = re.compile(r"CPU\s*Affinity|NUMA\s*Affinity|GPU\s+NUMA(?:\s+ID)?")
_COMMAND = re.compile(r"nvidia-smi\s+topo\s+(-\S+)")
_AMD = re.compile(r"\b(XGMI|rocm-smi|amd-smi)\b", re.IGNORECASE)
_LEGEND = re.compile(rf"\s*(NIC\d{{1,3}})\s*:\s*({_DEVICE}|{_OTHER_NIC.pattern})\s*", re.IGNORECASE | re.ASCII)
_SHOWN = 40


def is_gpu(device: str) -> bool:
    """Whether a device of the table is a GPU."""
    return device.startswith("GPU")


@dataclass(slots=True)
class TopoRow:
    """A row as it stands: codes by column where they can be told, and the text after them."""

    line: int
    label: str
    cells: list[str | None]
    tail: list[str]
    whole: bool


@dataclass(slots=True)
class TopoLines:
    """What the lines hold; `legend` gives names of NICs, `without_p2p` GPUs that a second table says cannot copy."""

    devices: tuple[str, ...] = ()
    header_line: int = 0
    last_line: int = 0
    tail_columns: int = 0
    rows: list[TopoRow] = field(default_factory=list)
    legend: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    without_p2p: list[str] = field(default_factory=list)
    inside: bool = False
    second_table: bool = False
    foreign: bool = False


def read_lines(text: str) -> TopoLines:
    """Return what the lines of a text hold, up to the first that is another command's."""
    lines = [_ESCAPE.sub("", line) for line in text.splitlines()]
    read = TopoLines(last_line=max((n for n, line in enumerate(lines, start=1) if line.strip()), default=0))
    for number, line in enumerate(lines, start=1):
        _read_line(read, number, line)
        if read.foreign:
            break
    return read


def _read_line(read: TopoLines, number: int, line: str) -> None:
    _read_command(read, number, line)
    if read.foreign:
        return
    devices = _header(line)
    if devices:
        _read_header(read, number, line, devices)
        return
    label, legend = _LABEL.match(line), _LEGEND.fullmatch(line)
    if label and not legend:
        _read_row(read, number, label[1], line[label.end() :])
    elif legend:
        read.inside = False
        read.legend[legend[1]] = legend[2]
    elif not line.strip() or line.strip().startswith("Legend"):
        read.inside = False
    elif read.inside and not read.second_table:
        read.messages.append(f"line {number}: {line.strip()[:_SHOWN]!r} in the table is no row of a device; not read")


def _read_command(read: TopoLines, number: int, line: str) -> None:
    command = _COMMAND.search(line)
    if command and command[1].startswith("-p2p"):
        read.problems.append(f"line {number}: this is nvidia-smi topo {command[1]}, not -m: run nvidia-smi topo -m")
        read.foreign = True
    if command and command[1] == "-mp":
        read.messages.append(f"line {number}: topo -mp hides NVLink; run topo -m to have it")
    if _AMD.search(line):
        read.problems.append(f"line {number}: this describes AMD GPUs, only nvidia-smi topo -m can be read")
        read.foreign = True


def _read_header(read: TopoLines, number: int, line: str, devices: tuple[str, ...]) -> None:
    if read.devices:
        read.second_table = True
        return
    twice = sorted({device for device in devices if devices.count(device) > 1})
    if twice:
        read.problems.append(f"line {number}: the header names {', '.join(twice)} twice")
    read.devices, read.header_line, read.inside = devices, number, True
    read.tail_columns = len(_COLUMNS.findall(line))


def _header(line: str) -> tuple[str, ...]:
    """Devices that a header line names; empty if the line is none."""
    columns = _COLUMNS.split(line)[0]
    names: list[str] = []
    for token in columns.split():
        parts = re.findall(_DEVICE, token, re.ASCII)
        if parts and "".join(parts) == token:
            names.extend(parts)
        elif names and _OTHER_NIC.fullmatch(token):
            names.append(token)
        else:
            return ()
    return tuple(names) if len(names) > 1 or (names and "Affinity" in line) else ()


def _read_row(read: TopoLines, number: int, label: str, rest: str) -> None:
    tokens = rest.split()
    if not read.devices:
        if tokens and _CODE.fullmatch(tokens[0]):
            read.problems.append(f"line {number}: row {label} stands before any header: begin with the line of columns")
        return
    statuses = [token for token in tokens if token in _P2P]
    if read.second_table or statuses:
        _read_second(read, number, label, tokens, statuses)
    elif label not in read.devices:
        read.problems.append(
            f"line {number}: row {label} has no column: the header on line {read.header_line} "
            f"names {', '.join(read.devices)}"
        )
    else:
        read.rows.append(_split(number, label, tokens, len(read.devices)))


def _read_second(read: TopoLines, number: int, label: str, tokens: Sequence[str], statuses: Sequence[str]) -> None:
    """A row of P2P statuses: alone it is another command's output, after a matrix it says what works."""
    if not read.rows:
        read.problems.append(
            f"line {number}: {', '.join(sorted(set(statuses)))} are P2P statuses of nvidia-smi topo -p2p, "
            "not distances: run nvidia-smi topo -m"
        )
        read.foreign = True
    elif set(statuses) - {"OK"}:
        read.without_p2p.append(label)
    elif not statuses and any(token != "X" and _CODE.fullmatch(token) for token in tokens):
        read.messages.append(
            f"line {number}: row {label} of a second table of distances is not read, only the first is"
        )


def _split(number: int, label: str, tokens: Sequence[str], columns: int) -> TopoRow:
    """Codes from the left; the rest is the affinity text."""
    cells: list[str | None] = []
    for index, token in enumerate(tokens):
        codes = _CODE.findall(token)
        if codes and "".join(codes) == token:
            cells.extend(codes)
        elif len(cells) >= columns or _AFFINITY.fullmatch(token):
            return TopoRow(number, label, cells, list(tokens[index:]), whole=True)
        else:
            # A cell that no code explains, perhaps glued to what follows: its place is known, its value is not.
            cells.append(None)
            if re.search(r"\d+-\d+", token):
                return TopoRow(number, label, cells, list(tokens[index + 1 :]), whole=True)
    return TopoRow(number, label, cells, [], whole=len(cells) >= columns)

"""Reading the text of `nvidia-smi topo -m`: the matrix of connection codes, repaired where one reading is certain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from foreshard.topologies.errors import InputError

__all__ = ["TopoMatrix", "parse_topo_matrix"]

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = r"GPU\d{1,3}|NIC\d{1,3}|mlx\d_(?:bond_)?\d{1,3}"
_OTHER_NIC = re.compile(r"(?:ib|roce|rdma|efa|bnxt|hfi|irdma|qedr|cxgb)[\w.-]*\d", re.IGNORECASE)
_CODE = re.compile(r"NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|X")
_P2P = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
_AFFINITY = re.compile(r"[\d,-]+|N/A")
_COMMAND = re.compile(r"nvidia-smi\s+topo\s+(-\S+)")
_AMD = re.compile(r"\b(XGMI|rocm-smi|amd-smi)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopoMatrix:
    """Codes between devices; a pair nobody states is absent. `affinity` holds a GPU's CPU list, `line` a row's line."""

    devices: tuple[str, ...]
    codes: dict[frozenset[str], str]
    affinity: dict[str, str]
    line: dict[str, int]
    messages: tuple[str, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPUs in the order of their numbers."""
        return tuple(sorted((d for d in self.devices if d.startswith("GPU")), key=lambda name: int(name[3:])))

    @property
    def nics(self) -> tuple[str, ...]:
        """NICs in the order of the columns."""
        return tuple(d for d in self.devices if not d.startswith("GPU"))

    def code(self, a: str, b: str) -> str | None:
        """Code between two devices, None if it is not known."""
        return self.codes.get(frozenset((a, b)))


@dataclass(slots=True)
class _Row:
    """A row as it stands: codes by column where they can be told, and the text after them."""

    line: int
    label: str
    cells: list[str | None]
    tail: list[str]
    whole: bool


@dataclass(slots=True)
class _Reading:
    devices: tuple[str, ...] = ()
    header_line: int = 0
    rows: list[_Row] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    without_p2p: list[str] = field(default_factory=list)
    second_table: bool = False
    foreign: bool = False


def parse_topo_matrix(text: str, where: str) -> TopoMatrix:
    """Return the matrix in the text of `nvidia-smi topo -m` (or `-mp`).

    Tabs and blanks, glued cells, missing and cut rows are read; what was repaired or is missing is in `messages`.
    Raises InputError naming the line where the text cannot be read with certainty, or is another command's.
    """
    reading = _Reading()
    for number, line in enumerate(text.splitlines(), start=1):
        _read_line(reading, number, _ESCAPE.sub("", line))
        if reading.foreign:
            break
    if not reading.devices and not reading.problems:
        reading.problems.append(
            "no line names the columns GPU0, GPU1, ...: give the whole output of nvidia-smi topo -m"
        )
    elif not reading.rows and not reading.problems:
        reading.problems.append(f"line {reading.header_line}: no row GPU0 ... follows the header")
    if not reading.problems:
        matrix = _joined(reading)
        if not reading.problems:
            return matrix
    raise InputError(reading.problems, where=where)


def _read_line(reading: _Reading, number: int, line: str) -> None:
    command = _COMMAND.search(line)
    if command and command[1].startswith("-p2p"):
        reading.problems.append(f"line {number}: this is nvidia-smi topo {command[1]}, not -m: run nvidia-smi topo -m")
        reading.foreign = True
    if command and command[1] == "-mp":
        reading.messages.append(f"line {number}: topo -mp hides NVLink; run topo -m to have it")
    if _AMD.search(line):
        reading.problems.append(f"line {number}: this describes AMD GPUs, only nvidia-smi topo -m can be read")
        reading.foreign = True
    devices = _header(line)
    if devices:
        if reading.devices:
            reading.second_table = True
        else:
            reading.devices, reading.header_line = devices, number
        return
    label = re.match(rf"\s*({_DEVICE}|{_OTHER_NIC.pattern})(?=\s)", line, re.IGNORECASE)
    if label and reading.devices:
        _read_row(reading, number, label[1], line[label.end() :])


def _header(line: str) -> tuple[str, ...]:
    """Devices that a header line names; empty if the line is none."""
    columns = re.split(r"CPU\s*Affinity|NUMA\s*Affinity|GPU\s+NUMA", line)[0]
    names: list[str] = []
    for token in columns.split():
        parts = re.findall(_DEVICE, token)
        if parts and "".join(parts) == token:
            names.extend(parts)
        elif names and _OTHER_NIC.fullmatch(token):
            names.append(token)
        else:
            return ()
    return tuple(names) if len(names) > 1 or (names and "Affinity" in line) else ()


def _read_row(reading: _Reading, number: int, label: str, rest: str) -> None:
    tokens = rest.split()
    statuses = [token for token in tokens if token in _P2P]
    if reading.second_table or statuses:
        _read_status(reading, number, label, statuses)
        return
    if label not in reading.devices:
        reading.problems.append(
            f"line {number}: row {label} has no column: the header on line {reading.header_line} "
            f"names {', '.join(reading.devices)}"
        )
        return
    reading.rows.append(_split(number, label, tokens, len(reading.devices)))


def _read_status(reading: _Reading, number: int, label: str, statuses: Sequence[str]) -> None:
    """A row of P2P statuses: alone it is another command's output, after a matrix it says what works."""
    if not reading.rows:
        reading.problems.append(
            f"line {number}: {', '.join(sorted(set(statuses)))} are P2P statuses of nvidia-smi topo -p2p, "
            "not distances: run nvidia-smi topo -m"
        )
        reading.foreign = True
    elif set(statuses) - {"OK"}:
        reading.without_p2p.append(label)


def _split(number: int, label: str, tokens: Sequence[str], columns: int) -> _Row:
    """Codes from the left; the rest is the affinity text."""
    cells: list[str | None] = []
    for index, token in enumerate(tokens):
        codes = _CODE.findall(token)
        if codes and "".join(codes) == token:
            cells.extend(codes)
        elif len(cells) >= columns or _AFFINITY.fullmatch(token):
            return _Row(number, label, cells, list(tokens[index:]), whole=True)
        else:
            # A cell that no code explains, perhaps glued to what follows: its place is known, its value is not.
            cells.append(None)
            if re.search(r"\d+-\d+", token):
                return _Row(number, label, cells, list(tokens[index + 1 :]), whole=True)
    return _Row(number, label, cells, [], whole=len(cells) >= columns)


def _joined(reading: _Reading) -> TopoMatrix:
    """The rows put together; every pair is stated by two rows, which must agree and repair each other."""
    by_label = {row.label: row for row in reading.rows}
    if len(by_label) < len(reading.rows):
        twice = [row for row in reading.rows if by_label[row.label] is not row]
        reading.problems.extend(f"line {row.line}: row {row.label} stands twice" for row in twice)
    for row in reading.rows:
        _fit(reading, row, by_label)
    codes = _agreed(reading)
    lost = [d for d in reading.devices if d.startswith("GPU") and d not in by_label]
    if lost:
        reading.messages.append(f"rows of {', '.join(lost)} are missing; the columns tell their distance to other GPUs")
    if reading.without_p2p:
        reading.messages.append(
            f"the second table says that {', '.join(reading.without_p2p)} cannot copy to peers, so NCCL stages in host "
            "memory; modelled as copies over the CPU, without the second crossing of host memory"
        )
    return TopoMatrix(
        devices=reading.devices,
        codes=codes,
        affinity={row.label: row.tail[0] for row in reading.rows if row.tail and _is_cpu_list(row.tail[0])},
        line={row.label: row.line for row in reading.rows},
        messages=tuple(reading.messages),
    )


def _is_cpu_list(text: str) -> bool:
    return bool(re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text))


def _fit(reading: _Reading, row: _Row, by_label: dict[str, _Row]) -> None:
    """Bring a row to the length of the header, where only one way of doing so agrees with the other rows."""
    missing = len(reading.devices) - len(row.cells)
    if missing == 0:
        return
    if missing < 0:
        reading.problems.append(
            f"line {row.line}: row {row.label} has {len(row.cells)} codes for {len(reading.devices)} columns"
        )
    elif not row.whole:
        _cut(reading, row, missing)
    else:
        ways = list(_insertions(reading, row, by_label)) if missing == 1 else []
        if len({tuple(way) for way in ways}) != 1:
            reading.problems.append(
                f"line {row.line}: row {row.label} lacks {missing} of {len(reading.devices)} codes, and the other rows "
                "do not tell which"
            )
            return
        row.cells = ways[0]
        reading.messages.append(f"line {row.line}: row {row.label} lacks a code; its place follows from the other rows")


def _cut(reading: _Reading, row: _Row, missing: int) -> None:
    """A row that ends early keeps what stands before the cut; its last code may itself be cut (NV1 of NV18)."""
    reading.messages.append(f"line {row.line}: row {row.label} is cut; its last {missing + 1} codes are not used")
    row.cells = [*row.cells[:-1], *[None] * (missing + 1)]


def _insertions(reading: _Reading, row: _Row, by_label: dict[str, _Row]) -> Iterator[list[str | None]]:
    """The row with one unknown code at every place where all others agree with the symmetric rows."""
    own = reading.devices.index(row.label)
    for place in range(len(reading.devices)):
        cells = [*row.cells[:place], None, *row.cells[place:]]
        if cells[own] in ("X", None) and all(
            code is None or _symmetric(reading, row, column, by_label) in (None, code)
            for column, code in enumerate(cells)
            if column != own
        ):
            yield cells


def _symmetric(reading: _Reading, row: _Row, column: int, by_label: dict[str, _Row]) -> str | None:
    """What the row of that column's device says about this row's device, if it is whole."""
    other = by_label.get(reading.devices[column])
    own = reading.devices.index(row.label)
    return other.cells[own] if other is not None and len(other.cells) == len(reading.devices) else None


def _agreed(reading: _Reading) -> dict[frozenset[str], str]:
    codes: dict[frozenset[str], str] = {}
    said: dict[frozenset[str], int] = {}
    for row in reading.rows:
        for other, code in zip(reading.devices, row.cells, strict=False):
            if code is None:
                continue
            if (code == "X") != (other == row.label):
                reading.problems.append(
                    f"line {row.line}: {row.label} to {other} is {code}: X stands on the diagonal only"
                )
                continue
            pair = frozenset((row.label, other))
            if code != "X" and codes.setdefault(pair, code) != code:
                reading.problems.append(
                    f"line {row.line}: {row.label} to {other} is {code}, but line {said[pair]} says {codes[pair]}"
                )
            said.setdefault(pair, row.line)
    _note_repairs(reading, codes)
    return {pair: "SYS" if code == "SOC" else code for pair, code in codes.items()}


def _note_repairs(reading: _Reading, codes: dict[frozenset[str], str]) -> None:
    for row in reading.rows:
        if not row.whole:
            continue
        for other, code in zip(reading.devices, row.cells, strict=False):
            if code is None:
                known = codes.get(frozenset((row.label, other)))
                if known:
                    text = f"line {row.line}: {row.label} to {other} is unreadable; row {other} says {known}"
                    reading.messages.append(text)
                elif other in {r.label for r in reading.rows} or other.startswith("GPU"):
                    reading.problems.append(
                        f"line {row.line}: {row.label} to {other} is unreadable, and no other row has it"
                    )

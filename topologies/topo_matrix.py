"""Reading the text of `nvidia-smi topo -m`: the matrix of connection codes, repaired where one reading is certain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from foreshard.topologies.errors import InputError
from foreshard.topologies.topo_lines import TopoLines, TopoRow, is_gpu, read_lines

__all__ = ["TopoMatrix", "parse_topo_matrix"]

_MOST_LINKS = 18  # NVLinks that any GPU has (H100, H200, B200)
_MOST = 64  # devices of a kind in one node, as in a cluster file
_CPU_LIST = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopoMatrix:
    """Codes between devices; a pair nobody states is absent.

    `affinity` and `numa` hold a device's CPU list and NUMA node, `legend` names of NICs, `line` a row's line.
    """

    devices: tuple[str, ...]
    codes: dict[frozenset[str], str]
    affinity: dict[str, str]
    numa: dict[str, str]
    legend: dict[str, str]
    line: dict[str, int]
    messages: tuple[str, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPUs in the order of their numbers."""
        return tuple(sorted(filter(is_gpu, self.devices), key=lambda name: int(name[3:])))

    @property
    def nics(self) -> tuple[str, ...]:
        """NICs in the order of the columns."""
        return tuple(d for d in self.devices if not is_gpu(d))

    def code(self, a: str, b: str) -> str | None:
        """Code between two devices, None if it is not known."""
        return self.codes.get(frozenset((a, b)))


def parse_topo_matrix(text: str, where: str) -> TopoMatrix:
    """Return the matrix in the text of `nvidia-smi topo -m` (or `-mp`).

    Tabs and blanks, glued cells, missing and cut rows are read; what was repaired or is missing is in `messages`.
    Raises InputError naming the line where the text cannot be read with certainty, or is another command's.
    """
    read = read_lines(text)
    if not read.devices and not read.problems:
        read.problems.append("no line names the columns GPU0, GPU1, ...: give the whole output of nvidia-smi topo -m")
    elif not read.rows and not read.problems:
        read.problems.append(f"line {read.header_line}: no row GPU0 ... follows the header")
    _check_counts(read)
    if not read.problems:
        matrix = _joined(read)
        if not read.problems:
            return matrix
    raise InputError(read.problems, where=where)


def _check_counts(read: TopoLines) -> None:
    gpus = sum(map(is_gpu, read.devices))
    if read.devices and not gpus:
        read.problems.append(f"line {read.header_line}: the header names no GPU")
    for count, what in ((gpus, "GPUs"), (len(read.devices) - gpus, "NICs")):
        if count > _MOST:
            read.problems.append(f"line {read.header_line}: {count} {what} are more than the {_MOST} of one node")


def _joined(reading: TopoLines) -> TopoMatrix:
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
    affinity, numa = _places(reading)
    return TopoMatrix(
        devices=reading.devices,
        codes=codes,
        affinity=affinity,
        numa=numa,
        legend=dict(reading.legend),
        line={row.label: row.line for row in reading.rows},
        messages=tuple(reading.messages),
    )


def _places(reading: TopoLines) -> tuple[dict[str, str], dict[str, str]]:
    """CPU list and NUMA node of each device where the text behind its codes tells them; the rest is a message."""
    affinity: dict[str, str] = {}
    numa: dict[str, str] = {}
    for row in reading.rows:
        names = ("CPU affinity", "NUMA affinity", "GPU NUMA ID")[: reading.tail_columns]
        for name, text in zip(names, row.tail, strict=False):
            if text == "N/A":
                continue
            if not _is_list(text):
                reading.messages.append(
                    f"line {row.line}: {name} {text[:40]!r} of {row.label} is no list such as 0-7,16-23; not used"
                )
            elif name != "GPU NUMA ID":
                (affinity if name == "CPU affinity" else numa)[row.label] = text
        rest = row.tail[len(names) :]
        if rest:
            reading.messages.append(f"line {row.line}: {' '.join(rest)[:40]!r} behind row {row.label} is not read")
    return affinity, numa


def _is_list(text: str) -> bool:
    """Whether a text is a list of numbers and ascending ranges."""
    if not _CPU_LIST.fullmatch(text):
        return False
    bounds = [tuple(map(int, part.split("-"))) for part in text.split(",")]
    flat = [number for part in bounds for number in part]
    return all(part[0] < part[-1] for part in bounds if len(part) == 2) and flat == sorted(set(flat))


def _fit(reading: TopoLines, row: TopoRow, by_label: dict[str, TopoRow]) -> None:
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


def _cut(reading: TopoLines, row: TopoRow, missing: int) -> None:
    """A row that ends early keeps what stands before the cut; its last code may itself be cut (NV1 of NV18)."""
    reading.messages.append(f"line {row.line}: row {row.label} is cut; its last {missing + 1} codes are not used")
    row.cells = [*row.cells[:-1], *[None] * (missing + 1)]


def _insertions(reading: TopoLines, row: TopoRow, by_label: dict[str, TopoRow]) -> Iterator[list[str | None]]:
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


def _symmetric(reading: TopoLines, row: TopoRow, column: int, by_label: dict[str, TopoRow]) -> str | None:
    """What the row of that column's device says about this row's device, if it is whole."""
    other = by_label.get(reading.devices[column])
    own = reading.devices.index(row.label)
    return other.cells[own] if other is not None and len(other.cells) == len(reading.devices) else None


def _agreed(reading: TopoLines) -> dict[frozenset[str], str]:
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
            if code.startswith("NV") and not _possible_nvlinks(reading, row, other, code):
                continue
            pair = frozenset((row.label, other))
            if code != "X" and codes.setdefault(pair, code) != code:
                reading.problems.append(
                    f"line {row.line}: {row.label} to {other} is {code}, but line {said[pair]} says {codes[pair]}"
                )
            said.setdefault(pair, row.line)
    _note_repairs(reading, codes)
    return {pair: "SYS" if code == "SOC" else code for pair, code in codes.items()}


def _possible_nvlinks(reading: TopoLines, row: TopoRow, other: str, code: str) -> bool:
    """Whether a code of NVLinks can be; what is wrong with it is a problem."""
    if not (is_gpu(row.label) and is_gpu(other)):
        reading.problems.append(f"line {row.line}: {row.label} to {other} is {code}, but NVLinks join GPUs only")
    elif int(code[2:]) > _MOST_LINKS:
        reading.problems.append(
            f"line {row.line}: {row.label} to {other} is {code}, but no GPU has more than {_MOST_LINKS} NVLinks"
        )
    else:
        return True
    return False


def _note_repairs(reading: TopoLines, codes: dict[frozenset[str], str]) -> None:
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

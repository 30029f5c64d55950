"""The planner's printed statistics report, which every TorchRec user already has in a log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from foreshard.simulator.job.sharding import ShardingType
from foreshard.simulator.plans.placement import row_bounds
from foreshard.simulator.torchrec.torchrec_shards import Shard, ShardedRow

__all__ = ["PrintedTable", "Report", "is_report", "read_report"]

MIB, GIB = 2.0**20, 2.0**30  # TorchRec prints MB and GB and means powers of two
PERF_PARTS = ("fwd_compute", "fwd_comms", "bwd_compute", "bwd_comms", "prefetch_compute")

_BORDERED = re.compile(r"[^#]*#(.*?)#?\s*\Z")
_NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ABBREVIATIONS: dict[str, ShardingType] = {
    "DP": "data_parallel",
    "TW": "table_wise",
    "CW": "column_wise",
    "RW": "row_wise",
    "TWRW": "table_row_wise",
    "TWCW": "table_column_wise",
    "GS": "grid_shard",
}
_NEEDED = ("FQN", "Sharding", "Compute Kernel", "Output", "Features", "Emb Dim (CW Dim)", "Hash Size", "Ranks")


@dataclass(frozen=True, kw_only=True, slots=True)
class PrintedTable:
    """One row of the report's "Parameter Info"; `ids_per_sample` and `bags_per_sample` over all features."""

    row: ShardedRow
    rows: int
    columns: int
    features: int
    pooled: bool
    ids_per_sample: float
    bags_per_sample: float
    rounded_to_zero: bool
    hbm_gib: float | None
    ddr_gib: float | None
    perf_ms: Mapping[str, float]


@dataclass(slots=True)
class Report:
    """What a report says; `ranks` are its per-rank rows, in bytes and ms, `facts` its totals;
    `section` is the heading read last."""

    tables: list[PrintedTable] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    section: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_report(text: str) -> bool:
    """Whether a text holds a planner's report, or a part of one."""
    return "Planner Statistics" in text or ("FQN" in text and "Compute Kernel" in text)


def read_report(text: str) -> Report:
    """Return what the report says; its mistakes are in `problems`, one sentence each with the line."""
    report = Report()
    header: list[str] = []
    for number, cells in _lines(text):
        if cells[:1] in (["Rank"], ["FQN"]):
            header = cells
            _check_header(number, header, report)
        elif not cells:
            header = []
        elif header and not set("".join(cells)) <= {"-"}:
            _read_row(number, header, cells, report)
        else:
            _read_fact(" ".join(cells), report)
    _check_whole(report)
    return report


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every bordered line; cells stand two blanks apart or more."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = _BORDERED.match(line)
        if match and set(line.strip()) != {"#"}:
            inner = match.group(1).strip()
            yield number, re.split(r"\s{2,}", inner) if inner else []


def _check_header(number: int, header: list[str], report: Report) -> None:
    missing = [name for name in _NEEDED if name not in header] if header[0] == "FQN" else []
    if missing:
        report.problems.append(
            f"line {number}: the columns {', '.join(missing)} are missing: is this planner's report?"
        )


def _read_row(number: int, header: list[str], cells: list[str], report: Report) -> None:
    if header[0] == "Rank" and not cells[0].isdecimal():
        return
    if len(cells) != len(header):
        found = f"line {number}: {len(cells)} columns where the header has {len(header)}"
        report.problems.append(f"{found}: was the line cut or wrapped?")
        return
    values = dict(zip(header, cells, strict=True))
    try:
        if header[0] == "Rank":
            report.ranks.append(_rank_row(values))
        else:
            report.tables.append(_table_row(values))
    except (ValueError, KeyError, IndexError, ZeroDivisionError) as error:
        report.problems.append(f"line {number}: {cells[0]}: {error}")


def _rank_row(values: Mapping[str, str]) -> dict[str, Any]:
    return {
        "rank": int(values["Rank"]),
        "hbm_bytes": _first(values["HBM (GB)"]) * GIB,
        "ddr_bytes": _first(values["DDR (GB)"]) * GIB,
        "perf_ms": _perf(values["Perf (ms)"]),
        "input_bytes": _first(values["Input (MB)"]) * MIB,
        "output_bytes": _first(values["Output (MB)"]) * MIB,
    }


def _table_row(values: Mapping[str, str]) -> PrintedTable:
    dims = [int(number) for number in _NUMBERS.findall(values["Emb Dim (CW Dim)"])]
    rows, columns, features = int(values["Hash Size"]), dims[0], int(values["Features"])
    kind = _kind(values["Sharding"])
    module, _, name = values["FQN"].rpartition(".")
    pooling = float(values.get("Sum Pooling Factor") or values.get("Pooling Factor") or features)
    bags = float(values.get("Sum Num Poolings") or values.get("Num Poolings") or features)
    # One feature's product is known to more digits than the printed number of indices.
    ids = pooling * bags if features == 1 else float(values.get("Num Indices") or pooling)
    storage = [float(number) for number in _NUMBERS.findall(_storage(values))]
    ranks = _ranks(values["Ranks"])
    return PrintedTable(
        row=ShardedRow(
            name=name, module=module, sharding=kind, kernel=values["Compute Kernel"], ranks=ranks,
            shards=_shards(kind, rows, columns, dims[-1], ranks),
        ),
        rows=rows,
        columns=columns,
        features=features,
        pooled=_pooled(values["Output"]),
        ids_per_sample=ids,
        bags_per_sample=bags,
        rounded_to_zero=ids == 0 or bags == 0,
        hbm_gib=storage[0] if storage else None,
        ddr_gib=storage[1] if len(storage) > 1 else None,
        perf_ms=_perf(values.get("Perf (ms)", "")),
    )  # fmt: skip


def _storage(values: Mapping[str, str]) -> str:
    return next((text for name, text in values.items() if name.startswith("Storage")), "")


def _kind(text: str) -> ShardingType:
    if text not in _ABBREVIATIONS:
        raise ValueError(f"unknown sharding {text!r}, expected one of {', '.join(_ABBREVIATIONS)}")
    return _ABBREVIATIONS[text]


def _pooled(text: str) -> bool:
    if text not in ("pooled", "sequence"):
        raise ValueError(f"output {text!r}, expected pooled or sequence")
    return text == "pooled"


def _first(text: str) -> float:
    return float(_NUMBERS.findall(text)[0])


def _perf(text: str) -> dict[str, float]:
    """{"total": ms, and the parts that the report prints in brackets}."""
    numbers = [float(number) for number in _NUMBERS.findall(text)]
    return dict(zip(("total", *PERF_PARTS), numbers, strict=False))


def _ranks(text: str) -> tuple[int, ...]:
    """Ranks of "0-95" or "11,27,57-60"; empty for "None", the report of a plan that failed."""
    if text in ("None", ""):
        return ()
    ends = [part.split("-") for part in text.split(",")]
    return tuple(rank for end in ends for rank in range(int(end[0]), int(end[-1]) + 1))


def _shards(
    kind: ShardingType, rows: int, columns: int, shard_columns: int, ranks: tuple[int, ...]
) -> tuple[Shard, ...]:
    """The shards, whose geometry the report leaves out: equal rows, equal columns, owners in order of rank."""
    if kind == "data_parallel" or not ranks:
        return ()
    slices = -(-columns // shard_columns) if kind in ("column_wise", "table_column_wise", "grid_shard") else 1
    if len(ranks) % slices:
        raise ValueError(f"{len(ranks)} ranks for {slices} column shards of {shard_columns} columns")
    parts = len(ranks) // slices
    owners = _by_node(ranks, parts) if kind == "grid_shard" else list(ranks)
    bounds = row_bounds(rows, parts)
    width = shard_columns if slices > 1 else columns
    return tuple(
        Shard(
            rank=owners[column * parts + part],
            row=int(bounds[part]),
            rows=int(bounds[part + 1] - bounds[part]),
            column=column * width,
            columns=min(width, columns - column * width),
        )
        for column in range(slices)
        for part in range(parts)
    )


def _by_node(ranks: tuple[int, ...], local: int) -> list[int]:
    """Sorted ranks of grid_shard in the order of its column slices: whole nodes, as often as a node has slices."""
    times = Counter(rank // local for rank in ranks)
    return [
        node * local + place for node in sorted(times) for _ in range(times[node] // local) for place in range(local)
    ]


_FACTS = {
    "batch_size": re.compile(r"Batch Size: (\d+)"),
    "world_size": re.compile(r"World Size: (\d+)"),
    "mean_perf_ms": re.compile(r"Mean Total Perf: ([\d.]+) ms"),
    "max_perf_ms": re.compile(r"Maximum of Total Perf: ([\d.]+) ms"),
    "reserved_percent": re.compile(r"Percent of Total HBM: (\d+)%"),
}
_SECTIONS = {
    "Dense Storage": "dense",
    "KJT Storage": "kjt",
    "Planning Memory": "planning",
    "Reserved Memory": "reserved",
    "Compute Kernels Count": "kernels",
}
_HBM = re.compile(r"HBM: ([\d.]+) GB")
_KERNEL_COUNT = re.compile(r"[a-z_]+: (\d+)\Z")


def _read_fact(text: str, report: Report) -> None:
    """Keep totals; a line such as "HBM: 62.667 GB" belongs to the heading read last."""
    facts = report.facts
    heading = next((section for title, section in _SECTIONS.items() if text.startswith(title)), None)
    if heading or text.endswith(":"):
        report.section = heading or ""
    if report.section == "kernels" and (match := _KERNEL_COUNT.match(text)):
        facts["tables"] = facts.get("tables", 0.0) + float(match.group(1))
    elif report.section and (match := _HBM.match(text)):
        facts.setdefault(f"{report.section}_hbm_bytes", float(match.group(1)) * GIB)
    for name, pattern in _FACTS.items():
        if match := pattern.search(text):
            facts.setdefault(name, float(match.group(1)))


def _check_whole(report: Report) -> None:
    """A report that lacks tables or ranks was cut: its plan would not be whole."""
    expected = report.facts.get("tables")
    if not report.tables and not report.problems:
        report.problems.append('there is no "Parameter Info" table: run the planner with debug=True (its default)')
    elif expected is not None and expected != len(report.tables) and not report.problems:
        report.problems.append(
            f"the report counts {expected:.0f} tables but {len(report.tables)} rows are there: it was cut"
        )
    elif expected is None:
        report.notes.append("the report ends before its table count: whether all tables are there cannot be told")
    numbers = [row["rank"] for row in report.ranks]
    if numbers != list(range(len(numbers))):
        report.problems.append("the rows of some ranks are missing or doubled: it was cut or several were mixed")

"""Logs of nccl-tests as rows of a profile: their collective, the ranks of each node, what cannot be, told by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from foreshard.calibration.imports.measured import Row
from foreshard.calibration.imports.places import Told, listed_shape, shape_of
from foreshard.calibration.imports.source import SourceFile, opened
from foreshard.calibration.logs.nccl_ratio import fits
from foreshard.calibration.logs.nccl_row import NcclRow
from foreshard.calibration.logs.nccl_tests import NcclLog, parse_nccl_log
from foreshard.simulator.comms.measured_times import shape_words
from foreshard.simulator.comms.single import run_one
from foreshard.simulator.job.program import CollectiveKind
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_bytes, format_us

__all__ = ["ImportedLog", "Kinds", "imported_log"]

KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
ClusterOf = Callable[[int], Cluster]
_WITHIN = 0.99  # of the bound: times are printed with three digits


@dataclass(frozen=True, kw_only=True, slots=True)
class Kinds:
    """The collectives of logs that do not name theirs: one for all, and by name of the file."""

    every: CollectiveKind | None = None
    by_file: Mapping[str, CollectiveKind] = field(default_factory=dict)

    def of(self, source: SourceFile, told: Sequence[str]) -> CollectiveKind | None:
        """What is said of a file, by its path or its last part; what holds for all, if it is not `told` by the file."""
        said = self.by_file.get(str(source.path)) or self.by_file.get(source.path.name)
        return said or (self.every if len(told) > 1 else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedLog:
    """What a log gives to a profile: rows, the devices by their names, versions, runs a time is the mean of, notes."""

    source: SourceFile
    rows: tuple[Row, ...]
    devices: tuple[str, ...]
    versions: Mapping[str, str]
    runs: int | None
    notes: tuple[str, ...]


def imported_log(source: SourceFile, kinds: Kinds, told: Told, cluster_of: ClusterOf | None) -> ImportedLog:
    """Return what a log gives to a profile; with `cluster_of`, the machine with so many nodes, its wires are checked.

    Raises InputError with every reason to distrust the log, each with its line, and for what it does not tell.
    """
    with opened(source.path) as (content, _):
        log = parse_nccl_log(content.read().decode("utf-8", errors="replace"))
    kind = _kind(log, kinds.of(source, log.kinds))
    listed = listed_shape(log.devices, log.ranks)
    shape = shape_of(_ranks(log, listed, told), listed, told)
    rows = [row for row in log.rows if fits(row, kind, sum(shape))]
    if not rows:
        raise InputError(
            f"no row is of {sum(shape)} ranks, by its ratio of busbw and algbw: give the --nodes and --ranks-per-node "
            "that it ran on"
        )
    notes = list(log.notes)
    if left := len(log.rows) - len(rows):
        notes.append(f"{left} rows are not of {sum(shape)} ranks and are left out")
    if cluster_of is not None:
        notes += _check_wires(rows, kind, shape, cluster_of)
    return ImportedLog(
        source=source,
        rows=tuple(_row(source, row, kind, shape) for row in rows),
        devices=tuple(sorted({device.name for device in log.devices if device.name})),
        versions=log.versions,
        runs=log.runs,
        notes=tuple(notes),
    )


def _row(source: SourceFile, row: NcclRow, kind: CollectiveKind, shape: tuple[int, ...]) -> Row:
    where = f"{source.name}, line {row.line}"
    return Row(kind=kind, ranks_per_node=shape, nbytes=row.nbytes, time_s=row.time_s, where=where)


def _kind(log: NcclLog, said: CollectiveKind | None) -> CollectiveKind:
    """The collective of a log: its own word, else what the user says."""
    possible = [kind for kind in KINDS if kind in log.kinds]
    if not log.kinds:
        raise InputError("the ratio of busbw to algbw fits no one collective in all rows: the log is mixed or damaged")
    if not possible:
        raise InputError(f"is a log of {' or '.join(log.kinds)}: a profile holds {', '.join(KINDS)} only, leave it out")
    if said is not None and said not in possible:
        raise InputError(f"is a log of {' or '.join(log.kinds)}, but --kind says {said}")
    if said is None and len(log.kinds) > 1:
        raise InputError(
            f"does not name its collective, and its columns fit {', '.join(log.kinds)} alike: give --kind, or "
            f"--kind FILE=KIND"
        )
    return said or possible[0]


def _ranks(log: NcclLog, listed: tuple[int, ...] | None, told: Told) -> int:
    ranks = log.ranks or (sum(listed) if listed else told.ranks)
    if ranks is None:
        raise InputError("does not tell its number of ranks: give both --nodes and --ranks-per-node")
    return ranks


def _check_wires(
    rows: Sequence[NcclRow], kind: CollectiveKind, shape: tuple[int, ...], cluster_of: ClusterOf
) -> list[str]:
    """Raises InputError for rows faster than the wires of the machine; a note where they cannot be compared."""
    cluster = cluster_of(len(shape))
    if len(set(shape)) > 1 or shape[0] > cluster.local_world_size:
        return [f"not compared with the wires of {cluster.name}, whose nodes do not run {shape_words(shape)} ranks"]
    per_node = None if shape[0] == cluster.local_world_size else shape[0]
    problems = []
    for row in rows:
        bound = run_one(cluster, kind, row.nbytes, "pairwise", per_node)
        if row.time_s < bound.bound_s * _WITHIN:
            problems.append(
                f"line {row.line}: {format_bytes(row.nbytes)} in {format_us(row.time_s)} is faster than the "
                f"{format_us(bound.bound_s)} that {bound.bottleneck} of {cluster.name} needs at its nominal "
                "bandwidth: wrong data, another machine or other units; do not calibrate with it"
            )
    if problems:
        raise InputError(problems)
    return []

"""A measured nccl-tests log beside the prediction for the same machine, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tabulate import tabulate

from foreshard.calibration.logs.nccl_ratio import fits, ranks_of_one_run
from foreshard.calibration.logs.nccl_row import NcclRow
from foreshard.calibration.logs.nccl_tests import NcclLog
from foreshard.simulator.comms.single import NCCL_TESTS, CollectiveResult, NcclTest, ranks_of, run_one
from foreshard.simulator.job.program import AllToAll
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_bytes, format_us

__all__ = ["ComparedRow", "LogComparison", "compare_log"]


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One measured row and its prediction."""

    measured: NcclRow
    predicted: CollectiveResult

    @property
    def error(self) -> float:
        """predicted / measured time - 1."""
        return self.predicted.time_s / self.measured.time_s - 1

    @property
    def nic_bytes_per_s(self) -> float:
        """What the busiest NIC really carried: the algorithm's bytes out of it over the measured time."""
        return self.predicted.nic_bytes / self.measured.time_s


@dataclass(frozen=True, kw_only=True, slots=True)
class LogComparison:
    """All rows of a log that are of this machine, and what was found on the way."""

    rows: tuple[ComparedRow, ...]
    notes: tuple[str, ...]

    @property
    def median_error(self) -> float:
        """Median of the errors' sizes."""
        return float(np.median([abs(row.error) for row in self.rows]))

    @property
    def worst_error(self) -> float:
        """Largest of the errors' sizes."""
        return max(abs(row.error) for row in self.rows)

    def to_rows(self) -> list[dict[str, float | str]]:
        """The rows in bytes and seconds."""
        return [
            {
                "bytes": row.measured.nbytes,
                "measured_time_s": row.measured.time_s,
                "time_s": row.predicted.time_s,
                "error": row.error,
                "bound_s": row.predicted.bound_s,
                "measured_algbw_bytes_per_s": row.measured.algbw_bytes_per_s,
                "measured_busbw_bytes_per_s": row.measured.busbw_bytes_per_s,
                "algbw_bytes_per_s": row.predicted.algbw_bytes_per_s,
                "busbw_bytes_per_s": row.predicted.busbw_bytes_per_s,
                "nic_bytes_per_s": row.nic_bytes_per_s,
                "algorithm": row.predicted.algorithm,
            }
            for row in self.rows
        ]

    def to_text(self) -> str:
        """An aligned table with the median and the worst error below."""
        header = [
            "size (B)",
            "measured (us)",
            "predicted (us)",
            "error",
            "bound (us)",
            "busbw (GB/s)",
            "per NIC (GB/s)",
        ]
        body = [
            [
                f"{row.measured.nbytes:.0f}",
                f"{row.measured.time_s * 1e6:.1f}",
                f"{row.predicted.time_s * 1e6:.1f}",
                f"{row.error:+.1%}",
                f"{row.predicted.bound_s * 1e6:.1f}",
                f"{row.measured.busbw_bytes_per_s / 1e9:.2f}",
                f"{row.nic_bytes_per_s / 1e9:.2f}",
                row.predicted.algorithm,
            ]
            for row in self.rows
        ]
        table = tabulate(body, headers=[*header, "algorithm"], disable_numparse=True, stralign="right")
        count = len(self.rows)
        errors = f"median error {self.median_error:.1%}, worst {self.worst_error:.1%} over {_counted(count)}"
        return "\n".join([table, "", errors, *(f"note: {note}" for note in self.notes)])


def compare_log(
    log: NcclLog,
    cluster: Cluster,
    kind: NcclTest,
    all_to_all: AllToAll = "pairwise",
    ranks_per_node: int | None = None,
) -> LogComparison:
    """Return a log beside the predictions for `cluster`, or for the first `ranks_per_node` ranks of its nodes.

    Rows of other numbers of ranks are left out. Raises InputError if the log is of another collective or none of
    its rows is of this cluster, and for every row faster than the bound: no wire of this machine carries that.
    """
    _check_kind(log, kind)
    own, notes = _of_cluster(log, cluster, kind, ranks_per_node)
    compared = [ComparedRow(row, run_one(cluster, kind, row.nbytes, all_to_all, ranks_per_node)) for row in own]
    problems = [_too_fast(row) for row in compared if row.measured.time_s < row.predicted.bound_s * 0.99]
    if problems:
        raise InputError(problems)
    notes.extend(_trees(cluster, kind, compared))
    return LogComparison(rows=tuple(compared), notes=(*log.notes, *notes))


def _check_kind(log: NcclLog, kind: NcclTest) -> None:
    if not log.kinds:
        raise InputError("the ratio of busbw to algbw fits no one collective in all rows: the log is mixed or damaged")
    if kind in log.kinds:
        return
    own = [found for found in log.kinds if found in NCCL_TESTS]
    advice = f"give --kind {own[0]}" if own else f"only {', '.join(NCCL_TESTS)} are predicted"
    raise InputError(f"the log is of {' or '.join(log.kinds)}, not of {kind}: {advice}")


def _trees(cluster: Cluster, kind: NcclTest, rows: Sequence[ComparedRow]) -> Iterator[str]:
    """A warning where busbw of two nodes is not what a NIC carried: by the algorithm predicted, or by its size."""
    if kind != "all_reduce" or _nodes(cluster) != 2:
        return
    beyond = [row for row in rows if "tree" in row.predicted.algorithm or _beyond_a_ring(cluster, row)]
    if beyond:
        lines = _lines([row.measured.line for row in beyond])
        yield (
            f"{lines}: busbw of a tree on two nodes is not the rate of the NICs: "
            "it sends the buffer through them once where busbw counts it almost twice; the column per NIC shows what "
            "they carried (NCCL_ALGO=RING measures them)"
        )


def _beyond_a_ring(cluster: Cluster, row: ComparedRow) -> bool:
    """Whether busbw is more than a ring could reach: all of it would go through the NICs of a node."""
    first = cluster.links_of_node(0)
    ports = first[cluster.link_kind[first] == "network"]
    return row.measured.busbw_bytes_per_s > float(cluster.link_bandwidth[ports].sum()) / 2


def _of_cluster(
    log: NcclLog, cluster: Cluster, kind: NcclTest, ranks_per_node: int | None
) -> tuple[list[NcclRow], list[str]]:
    ranks = len(ranks_of(cluster, ranks_per_node))
    if log.ranks is not None and log.ranks != ranks:
        raise InputError(
            f"the log is of {log.ranks} ranks, but {cluster.name} with {_nodes_text(cluster)} has {ranks}"
            f"{f' by {ranks_per_node} a node' if ranks_per_node else ''}: {_advice(log.ranks, cluster)}"
        )
    own = [row for row in log.rows if fits(row, kind, ranks)]
    if not own:
        raise InputError(
            f"no row of the log is of {ranks} ranks, by its ratio of busbw and algbw: give the --nodes it ran on"
        )
    left = len(log.rows) - len(own)
    if left and (told := ranks_of_one_run(log.rows, kind)):
        raise InputError(
            f"busbw / algbw of the log mean {told} as {kind}, but {cluster.name} with {_nodes_text(cluster)} has "
            f"{ranks}: give the machine, the --nodes it ran on, and --ranks-per-node if it used some GPUs of each only"
        )
    return own, [f"{_counted(left)} of another number of ranks {'is' if left == 1 else 'are'} left out"] if left else []


def _advice(ranks: int, cluster: Cluster) -> str:
    nodes, rest = divmod(ranks, cluster.local_world_size)
    if nodes and not rest:
        return f"give --nodes {nodes}"
    return "give the machine, the --nodes it ran on, and --ranks-per-node if it used some GPUs of each only"


def _counted(rows: int) -> str:
    return f"{rows} row{'s' * (rows != 1)}"


def _nodes_text(cluster: Cluster) -> str:
    return f"{cluster.nodes} node{'s' * (cluster.nodes > 1)}"


def _lines(numbers: Sequence[int]) -> str:
    """Lines of a log in words, as "lines 3-24, 27"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return f"line{'s' * (len(numbers) > 1)} {', '.join(parts)}"


def _nodes(cluster: Cluster) -> int:
    return len(set(cluster.domain_of.tolist()))


def _too_fast(row: ComparedRow) -> str:
    took, bound = row.measured, row.predicted
    return (
        f"line {took.line}: {format_bytes(took.nbytes)} in {format_us(took.time_s)} is faster than the "
        f"{format_us(bound.bound_s)} that {bound.bottleneck} needs at its nominal bandwidth: wrong data, another "
        "machine or other units; do not calibrate with it"
    )

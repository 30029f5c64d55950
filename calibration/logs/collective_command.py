"""`foreshard collective`: collectives on their own, predicted and beside measured logs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click
from tabulate import tabulate

from foreshard.calibration.logs.log_comparison import compare_log
from foreshard.calibration.logs.nccl_tests import read_nccl_log
from foreshard.simulator.comms.collectives import assumptions
from foreshard.simulator.comms.damage import CollectiveDamage, damage_of_collective
from foreshard.simulator.comms.reach import beyond_measurement, extrapolated_s
from foreshard.simulator.comms.single import NCCL_TESTS, CollectiveResult, ranks_of, run_one
from foreshard.simulator.job.program import AllToAll
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.commands import degrade_factors, degrade_option, open_cluster
from foreshard.topologies.errors import InputError, UnitError
from foreshard.topologies.units import BYTES, format_bytes, parse_quantity

__all__ = ["collective", "parse_sizes"]


@click.command()
@click.option("--cluster", "machine", required=True, metavar="NAME|FILE", help="A shipped machine or a cluster file.")
@click.option("--nodes", type=click.IntRange(1, 1 << 20), help="Number of nodes (a machine: 1; a file: what it says).")
@degrade_option
@click.option("--kind", type=click.Choice(NCCL_TESTS), required=True, help="Which collective.")
@click.option("--bytes", "sizes", metavar="SIZES", help="Sizes as nccl-tests counts them, such as 32MiB,1GiB.")
@click.option(
    "--all-to-all", "steps", type=click.Choice(get_args(AllToAll)),
    help="Plain grouped send/recv (pairwise, the default), or inside nodes first.",
)  # fmt: skip
@click.option("--ranks-per-node", "per_node", type=click.IntRange(1, 1024), help="Use only so many GPUs of every node.")
@click.option("--compare", "log", type=click.Path(path_type=Path), metavar="FILE", help="An nccl-tests log of it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in bytes and seconds.")
def collective(
    machine: str,
    nodes: int | None,
    damage: tuple[str, ...],
    kind: Any,
    sizes: str | None,
    steps: Any,
    per_node: int | None,
    log: Path | None,
    as_json: bool,
) -> None:
    """Predict a collective over all ranks of a machine, as nccl-tests would print it.

    With --compare, the sizes are those of the log unless --bytes gives its own.
    """
    _check_options(kind, sizes, steps, log)
    cluster, steps = open_cluster(machine, nodes, degrade_factors(damage)), steps or "pairwise"
    _check_ranks(cluster, per_node)
    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    if sizes is not None:
        results = [run_one(cluster, kind, size, steps, per_node) for size in _fitting(cluster, parse_sizes(sizes))]
        harm = list(damage_of_collective(cluster, results, steps, per_node))
        rows += [_row(cluster, result, harm) for result in results]
        texts.append("\n".join([_table(cluster, results), *(f"damaged: {each.sentence()}" for each in harm)]))
    if log is not None:
        compared = compare_log(read_nccl_log(log), cluster, kind, steps, per_node)
        rows += compared.to_rows()
        texts.append(compared.to_text())
        if as_json:
            click.echo("\n".join(f"note: {note}" for note in compared.notes), err=True)
    texts.append("assumed:\n" + "\n".join(f"  {sentence}" for sentence in assumptions(cluster, kind)))
    click.echo(json.dumps(rows, indent=2, allow_nan=False) if as_json else "\n\n".join(texts))


def _check_options(kind: str, sizes: str | None, steps: str | None, log: Path | None) -> None:
    problems = []
    if sizes is None and log is None:
        problems.append("no sizes: give --bytes, such as 32MiB,1GiB, or a log with --compare")
    if steps is not None and kind != "all_to_all":
        problems.append(f"--all-to-all {steps} means nothing for {kind}: leave it out, or give --kind all_to_all")
    if problems:
        raise InputError(problems)


def _check_ranks(cluster: Cluster, per_node: int | None) -> None:
    if len(ranks_of(cluster, per_node)) < 2:
        raise InputError(
            f"{cluster.name} with {cluster.nodes} node{'s' * (cluster.nodes > 1)} has one rank only here, so nothing "
            "would cross a link: give more --nodes or --ranks-per-node"
        )


def _fitting(cluster: Cluster, sizes: list[float]) -> list[float]:
    """The sizes, if every GPU can hold such a buffer; nccl-tests could not run them otherwise."""
    smallest = min(cluster.gpus, key=lambda gpu: gpu.hbm_bytes)
    problems = [
        f"{size:g} B do not fit into the {format_bytes(smallest.hbm_bytes)} of HBM of {smallest.name}: give less"
        for size in sizes
        if size > smallest.hbm_bytes
    ]
    if problems:
        raise InputError(problems, where="--bytes")
    return sizes


def parse_sizes(text: str) -> list[float]:
    """Return the sizes of "32MiB,1GiB" in whole bytes. Raises InputError with every one that cannot be read or is less
    than one byte."""
    found, problems = [], []
    for part in text.split(","):
        try:
            size = parse_quantity(part.strip(), BYTES)
        except UnitError as error:
            problems.append(_advice(part.strip()) or str(error))
            continue
        found.append(float(round(size)))
        if size < 1:
            problems.append(f"{part.strip()!r} is less than one byte: give a size such as 32MiB")
    if problems:
        raise InputError(dict.fromkeys(problems), where="--bytes")
    return found


def _advice(part: str) -> str:
    number, letter = part[:-1], part[-1:]
    if letter in ("K", "M", "G", "T") and number.strip().isdigit():
        power = 10 * ("KMGT".index(letter) + 1)
        return (
            f"{part!r} is ambiguous: write {number}{letter}iB for {number} x 2^{power}, which is nccl-tests' {part}, "
            f"or {number}{letter}B for a power of ten"
        )
    if part.isdigit():
        return f"{part!r} has no unit: write {part}B, or a size such as 32MiB"
    return ""


def _row(cluster: Cluster, result: CollectiveResult, damage: list[CollectiveDamage]) -> dict[str, Any]:
    return {
        "bytes": result.nbytes,
        "time_s": result.time_s,
        "bound_s": result.bound_s,
        "algbw_bytes_per_s": result.algbw_bytes_per_s,
        "busbw_bytes_per_s": result.busbw_bytes_per_s,
        "nic_bytes": result.nic_bytes,
        "algorithm": result.algorithm,
        "bottleneck": result.bottleneck,
        "remote_peers": result.peers,
        "extrapolated_s": extrapolated_s(cluster, result.peers),
        "damage": [asdict(each) for each in damage if each.nbytes == result.nbytes],
    }


def _ratio(result: CollectiveResult) -> str:
    """Time over bound; of small messages only that latency rules."""
    ratio = result.time_s / result.bound_s if result.bound_s > 0 else float("inf")
    return f"{ratio:.2f}" if ratio < 1000 else "> 1000"


def _table(cluster: Cluster, results: list[CollectiveResult]) -> str:
    header = [
        "size (B)",
        "time (us)",
        "algbw (GB/s)",
        "busbw (GB/s)",
        "bound (us)",
        "time/bound",
        "per NIC (B)",
        "algorithm",
    ]
    body = [
        [
            f"{result.nbytes:.0f}",
            f"{result.time_s * 1e6:.2f}",
            f"{result.algbw_bytes_per_s / 1e9:.2f}",
            f"{result.busbw_bytes_per_s / 1e9:.2f}",
            f"{result.bound_s * 1e6:.2f}",
            _ratio(result),
            f"{result.nic_bytes:.0f}",
            result.algorithm,
        ]
        for result in results
    ]
    title = f"{results[0].kind} over {results[0].ranks} ranks, {cluster.nodes} x {cluster.name}" if results else ""
    bounds = sorted({result.bottleneck for result in results if result.bottleneck})
    foot = f"bound by {', '.join(bounds)} at nominal bandwidth, without latency" if bounds else ""
    beyond = sorted({f"beyond measurement: {told}" for r in results if (told := beyond_measurement(cluster, r.peers))})
    body_text = tabulate(body, headers=header, disable_numparse=True, stralign="right")
    return "\n".join(filter(None, [title, body_text, foot, *beyond]))

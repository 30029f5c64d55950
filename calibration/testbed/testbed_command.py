"""`foreshard testbed`: builds a bed, runs a command as its ranks or says what it really carries, and takes it down."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from tabulate import tabulate

from foreshard.calibration.launch.wording import ranks_counted
from foreshard.calibration.testbed.bed import Testbed
from foreshard.calibration.testbed.description import Probe, cluster_text, probe_bed
from foreshard.calibration.testbed.shape import check_bed
from foreshard.topologies.errors import check_all
from foreshard.topologies.output import check_writable, write_text
from foreshard.topologies.units import format_bandwidth, format_bytes, format_us

__all__ = ["testbed"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--shape", required=True, metavar="NxR", help="Nodes x ranks in each, as 2x2, or ranks of each: 2+1.")
@click.option("--rate", required=True, metavar="RATE", help='What a node\'s link carries each way: "500 Mbit/s".')
@click.option("--burst", metavar="BYTES", help="What may pass at once after a pause (what the rate needs, 128 KiB).")
@click.option("--pin", is_flag=True, help="Keep every rank to one core, rank after rank.")
@click.option("--hold", is_flag=True, help="Keep the bed until interrupted, for `ip netns exec NAMESPACE ...`.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Probe it and write its cluster file (TOML).")
@click.option("--json", "as_json", is_flag=True, help="Print what was probed as JSON, in bytes and seconds.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND ...]")
def testbed(
    shape: str, rate: str, burst: str | None, pin: bool, hold: bool, output: Path | None, as_json: bool,
    command: tuple[str, ...],
) -> int:  # fmt: skip
    """Build several nodes on this machine and run COMMAND as every rank of them, as torchrun would.

    Nodes are network namespaces on a bridge, each behind a link of the given rate. Without COMMAND the bed is probed:
    what every link carries, what loopback and a rank's cores do. Needs Linux, root, ip and tc.
    """
    check_all(
        lambda: check_bed(shape, rate, burst),
        (lambda: check_writable(output)) if output is not None else None,
    )
    with Testbed(shape, rate, burst=burst) as bed:
        if bed.leftovers:
            click.echo(f"removed {len(bed.leftovers)} namespaces that a killed run had left", err=True)
        if output is not None or not command:
            _show(bed, output, as_json, beside=bool(command))
        codes = [result.exit_code for result in bed.run(command, pinned=pin)] if command else []
        if hold:
            _hold(bed)
    return _exit_code(codes)


def _show(bed: Testbed, output: Path | None, as_json: bool, beside: bool) -> None:
    probe = probe_bed(bed)
    click.echo(json.dumps(_rows(bed, probe), indent=2) if as_json else _text(bed, probe), err=beside)
    if output is not None:
        write_text(output, cluster_text(bed.shape, bed.link, probe))
        click.echo(f"cluster file written to {output}", err=True)


def _hold(bed: Testbed) -> None:
    click.echo(f"up until interrupted: ip netns exec {bed.namespaces[0]} COMMAND", err=True)
    signal.pause()


def _exit_code(codes: list[int]) -> int:
    """The first failure's, as shells report it; 0 if there is none."""
    failed = next((code for code in codes if code), 0)
    return 128 - failed if failed < 0 else failed


def _rows(bed: Testbed, probe: Probe) -> dict[str, Any]:
    return {
        "shape": str(bed.shape),
        "ranks_per_node": bed.shape.ranks_per_node,
        "rate_bytes_per_s": bed.link.rate_bytes_per_s,
        "payload_bytes_per_s": bed.link.payload_bytes_per_s,
        "burst_bytes": bed.link.burst_bytes,
        **asdict(probe),
    }


def _text(bed: Testbed, probe: Probe) -> str:
    link = bed.link
    megabits = link.rate_bytes_per_s * 8 / 1e6
    title = f"testbed {bed.shape}: {ranks_counted(bed.shape.world_size)}, {megabits:g} Mbit/s each way"
    title += f", burst {format_bytes(link.burst_bytes)}"
    carried = probe.link_bytes_per_s or ()
    body = [
        [node, ranks, format_bandwidth(rate), f"{rate / link.payload_bytes_per_s:.1%}", name]
        for node, (ranks, rate, name) in enumerate(zip(bed.shape.ranks_per_node, carried, bed.namespaces, strict=False))
    ]
    header = ["node", "ranks", "into the node", "of what is left beside headers", "namespace"]
    lines = [title, *([tabulate(body, headers=header, disable_numparse=True)] if carried else [])]
    return "\n".join([*lines, *_rank_lines(probe)])


def _rank_lines(probe: Probe) -> list[str]:
    across = f", across {format_us(probe.link_latency_s)}" if probe.link_bytes_per_s else ""
    return [
        f"loopback into a rank that sends as much: {format_bandwidth(probe.loopback_bytes_per_s)}",
        f"one byte from rank to rank: {format_us(probe.loopback_latency_s)} inside a node{across}",
        f"a rank, while all work: {probe.flops / 1e9:.1f} GFLOP/s in fp32, "
        f"{format_bandwidth(probe.memory_bytes_per_s)} of memory",
    ]

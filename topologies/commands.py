"""The command line of this room: `foreshard cluster` and `foreshard import-topology`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import load_cluster_file
from foreshard.topologies.drawing import check_drawing, save_drawing
from foreshard.topologies.errors import InputError
from foreshard.topologies.explicit import dump_cluster
from foreshard.topologies.fields import near
from foreshard.topologies.importing import Imported, import_topology_file
from foreshard.topologies.output import check_writable, replaced
from foreshard.topologies.presets import load_preset, preset_names
from foreshard.topologies.summary import describe, describe_text

__all__ = ["COMMANDS", "cluster", "degrade_factors", "degrade_option", "import_topology", "open_cluster"]


def open_cluster(name: str, nodes: int | None = None, degrade: dict[str, float] | None = None) -> Cluster:
    """Return the cluster of a shipped name or of a file. Raises InputError if it is neither.

    `nodes` None takes one node of a shipped machine, or what the file says.
    """
    if name in preset_names():
        return load_preset(name, nodes or 1, degrade)
    if name.endswith(".toml") or os.path.exists(name):
        return load_cluster_file(name, nodes, degrade)
    raise InputError(f"{name!r} is neither a machine nor a file; {near(name, preset_names())}")


degrade_option = click.option(
    "--degrade",
    "damage",
    multiple=True,
    metavar="LINKS=FACTOR",
    help="What is left of links whose names match, 0 for missing: 'node0/nic3<->leaf*=0.5'.",
)


@click.command()
@click.argument("name_or_file")
@click.option("--nodes", type=click.IntRange(1, 1 << 20), help="Number of nodes (a machine: 1; a file: what it says).")
@degrade_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (bytes, bytes per second, seconds).")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw one or two nodes and the fabric into it."
)
def cluster(name_or_file: str, nodes: int | None, damage: tuple[str, ...], as_json: bool, plot: Path | None) -> None:
    """Show what a machine or cluster file resolves to: links, bandwidths, constants and where they are from."""
    if plot is not None:
        check_drawing(plot)
    found = open_cluster(name_or_file, nodes, degrade_factors(damage))
    click.echo(json.dumps(describe(found), indent=2) if as_json else describe_text(found))
    if plot is not None:
        save_drawing(found, plot)
        click.echo(f"drawing written to {plot}", err=True)


def degrade_factors(damage: tuple[str, ...]) -> dict[str, float]:
    """Return factors by pattern of what `degrade_option` collected; raises InputError with every one that is wrong."""
    factors, problems = {}, []
    for text in damage:
        pattern, _, factor = text.rpartition("=")
        if pattern in factors:
            problems.append(f"--degrade {pattern!r} is given twice: give each pattern of links one factor")
        try:
            factors[pattern] = float(factor)
        except ValueError:
            problems.append(
                f"--degrade {text!r}: {factor!r} is not a number: write LINKS=FACTOR, such as 'node0/nic3->*=0.5'"
            )
        if not pattern:
            problems.append(f"--degrade {text!r} names no links: write LINKS=FACTOR, such as 'node0/nic3->*=0.5'")
    if problems:
        raise InputError(dict.fromkeys(problems))
    return factors


@click.command("import-topology")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Cluster file (TOML) to write.")
@click.option(
    "--gpu", help="GPU model of the catalogue, such as H100-SXM5-80GB; else assumed from what the file shows."
)
@click.option("--nic", help="NIC port of the catalogue, such as ndr-400g; else assumed.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
def import_topology(file: Path, output: Path, gpu: str | None, nic: str | None, force: bool) -> None:
    """Turn the text of `nvidia-smi topo -m` or NCCL's topology XML into a cluster file."""
    check_writable(output)
    if output.exists() and not force:
        raise InputError(f"{output}: exists already: give another name or --force")
    imported = import_topology_file(file, gpu=gpu, nic=nic)
    made = Cluster(imported.spec)
    with replaced(output) as part:
        part.write_text(_file_text(imported), encoding="utf-8")
    click.echo(f"{output}: one node of {made.size} GPUs from {imported.format}. Assumed, please check:")
    for message in imported.messages:
        click.echo(f"  - {message}")


def _file_text(imported: Imported) -> str:
    head = (
        f"# Imported from {imported.format}. What had to be assumed stands under assumptions; change what is wrong.\n"
    )
    return head + dump_cluster(imported.spec)


COMMANDS = [cluster, import_topology]

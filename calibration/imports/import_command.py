"""`foreshard calibrate import`: logs of nccl-tests and Kineto traces become points of a profile."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from foreshard.calibration.imports.import_text import import_notes, import_text
from foreshard.calibration.imports.imported_profile import imported_profile, joined
from foreshard.calibration.imports.log_rows import KINDS, ClusterOf, Kinds
from foreshard.calibration.imports.places import SAID, Told
from foreshard.calibration.imports.reading import read_files
from foreshard.calibration.measure.link_report import link_rows
from foreshard.simulator.job.program import CollectiveKind
from foreshard.simulator.measured.profile import Profile
from foreshard.simulator.measured.profile_file import read_profile, save_profile
from foreshard.topologies.commands import open_cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import check_writable

__all__ = ["import_files"]


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Profile to write or add to.")
@click.option("--nodes", type=click.IntRange(1, 1 << 20), help="On how many nodes it ran, if no file tells.")
@click.option(
    "--ranks-per-node", "per_node", type=click.IntRange(1, 1024), help="Ranks in each node, if no file tells."
)
@click.option(
    "--kind", "said", multiple=True, metavar="[FILE=]KIND", help="The collective of logs, or of one, that do not tell."
)
@click.option("--cluster", "machine", metavar="NAME|FILE", help="Refuse rows faster than the wires of this machine.")
@click.option("--device-name", metavar="NAME", help="What the GPUs are, if no file tells.")
@click.option("--collectives-only", is_flag=True, help="Leave out what traces tell of dense layers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in bytes and seconds.")
def import_files(
    files: tuple[Path, ...], output: Path, nodes: int | None, per_node: int | None, said: tuple[str, ...],
    machine: str | None, device_name: str | None, collectives_only: bool, as_json: bool,
) -> None:  # fmt: skip
    """Take logs of nccl-tests and Kineto traces of a machine into a profile that predictions use.

    Give several logs at once, one for every collective and number of nodes, and the traces of all ranks of one run:
    of one rank alone, collectives hold the wait for the others. Files may be packed by gzip.
    """
    check_writable(output)
    kinds = _kinds(said)
    before = read_profile(output) if output.exists() else None
    told, cluster_of = _told(nodes, per_node, machine)
    imported = read_files(files, kinds, told, cluster_of, with_work=not collectives_only)
    command = shlex.join(["foreshard", *sys.argv[1:]])
    profile = imported_profile(imported, name=output.stem, command=command, device_name=device_name)
    save_profile(_whole(before, profile, output), output)
    if as_json:
        click.echo(json.dumps({"collectives": link_rows(profile), "work": msgspec.to_builtins(profile.work)}, indent=2))
        click.echo("".join(f"note: {note}\n" for note in import_notes(imported, profile)), err=True, nl=False)
    else:
        click.echo(import_text(imported, profile))
    click.echo(f"profile written to {output}", err=True)


def _kinds(said: Sequence[str]) -> Kinds:
    """The collectives of logs that do not tell; raises InputError with everything in --kind that cannot be."""
    problems: list[str] = []
    by_file: dict[str, CollectiveKind] = {}  # "" for all that do not tell
    for text in said:
        file, _, name = text.rpartition("=")
        kind = next((kind for kind in KINDS if kind == name), None)
        if kind is None:
            problems.append(f"--kind {text!r}: {name!r} is none of {', '.join(KINDS)}")
        elif file in by_file:
            problems.append(f"--kind {text!r}: is said twice: say one, or FILE=KIND for every file")
        else:
            by_file[file] = kind
    if problems:
        raise InputError(problems)
    return Kinds(every=by_file.pop("", None), by_file=by_file)


def _told(nodes: int | None, per_node: int | None, machine: str | None) -> tuple[Told, ClusterOf | None]:
    """What is said of the machine; its own GPUs per node, where --ranks-per-node does not say."""
    if machine is None:
        return Told(nodes=nodes, per_node=per_node), None
    held = open_cluster(machine, nodes).local_world_size
    told = Told(nodes=nodes, per_node=per_node or held, per_node_of=SAID if per_node else "--cluster")
    return told, lambda count: open_cluster(machine, count)


def _whole(before: Profile | None, profile: Profile, output: Path) -> Profile:
    """The profile, laid into what was in its file."""
    if before is None:
        return profile
    try:
        return joined(before, profile)
    except InputError as error:
        raise InputError(error.problems, where=str(output)) from None

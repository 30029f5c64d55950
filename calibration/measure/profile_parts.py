"""Laying newly measured parts into a profile's file: what was measured again takes the place of what was there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from foreshard.calibration.measure.machine import cpu_name
from foreshard.simulator.job.scenario import Constant
from foreshard.simulator.measured.profile import Profile, Provenance
from foreshard.simulator.measured.profile_file import read_profile, save_profile
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import check_writable

__all__ = ["check_output", "lay_into", "merged"]

Named = TypeVar("Named", Provenance, Constant)

_MACHINE = ("backend", "device", "device_name", "ranks_per_node")


def check_output(path: str | Path, ranks_per_node: Sequence[int] | None = None) -> None:
    """Return if `path` can be written, or is the profile of a machine like this one, of so many ranks if they are
    known; raises InputError."""
    check_writable(path)
    if not Path(path).exists():
        return
    old = read_profile(path)
    here = {"device_name": cpu_name()} if old.device == "cpu" else {}
    there = {} if ranks_per_node is None else {"ranks_per_node": tuple(sorted(ranks_per_node, reverse=True))}
    problems = [_other(name, getattr(old, name), now) for name, now in {**here, **there}.items()]
    if problems := list(filter(None, problems)):
        raise InputError(problems, where=str(path))


def merged(old: Profile, new: Profile) -> Profile:
    """Return `old` with every part that `new` has in place of its own; provenance and constants by name.

    Raises InputError with everything in which the two are not of the same machine.
    """
    problems = list(_differences(old, new))
    if problems:
        raise InputError(problems)
    return replace(
        old,
        provenance=_by_name(old.provenance, new.provenance),
        collectives=new.collectives or old.collectives,
        pairs=new.pairs or old.pairs,
        work=new.work or old.work,
        noise=replace(
            old.noise,
            compute=new.noise.compute or old.noise.compute,
            collectives=new.noise.collectives or old.noise.collectives,
        ),
        constants=_by_name(old.constants, new.constants),
    )


def _by_name(old: tuple[Named, ...], new: tuple[Named, ...]) -> tuple[Named, ...]:
    again = {it.name for it in new}
    return tuple([it for it in old if it.name not in again] + list(new))


def lay_into(path: str | Path, new: Profile) -> Profile:
    """Write `new` into the file, beside the parts that it has already; returns the whole. Raises InputError."""
    whole = merged(_read_like(path, new), new) if Path(path).exists() else new
    save_profile(whole, path)
    return whole


def _read_like(path: str | Path, new: Profile) -> Profile:
    old = read_profile(path)
    if problems := list(_differences(old, new)):
        raise InputError(problems, where=str(path))
    return old


def _differences(old: Profile, new: Profile) -> Iterator[str]:
    for name in _MACHINE:
        if told := _other(name, getattr(old, name), getattr(new, name)):
            yield told


def _other(name: str, before: object, now: object) -> str:
    """What differs in a sentence; empty if nothing does."""
    if before == now:
        return ""
    return f"{name} = {before!r} in the profile, but now it is {now!r}: name another file for another machine"

"""Laying newly measured parts into a profile's file: what was measured again takes the place of what was there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from foreshard.simulator.job.scenario import Constant
from foreshard.simulator.measured.profile import Profile, Provenance
from foreshard.simulator.measured.profile_file import read_profile, save_profile
from foreshard.topologies.errors import InputError

__all__ = ["lay_into", "merged"]

Named = TypeVar("Named", Provenance, Constant)

_MACHINE = ("backend", "device", "device_name", "ranks_per_node")


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
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            yield f"{name} = {before!r} in the profile, but now it is {now!r}: name another file for another machine"

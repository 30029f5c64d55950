"""What a report says of links: the busiest ones, and what damaged ones do."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from foreshard.simulator.results.section import Section
from foreshard.topologies.units import format_bandwidth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foreshard.simulator.results.busy_links import BusyLink
    from foreshard.simulator.results.damage import Damage

__all__ = ["busy_section", "damage_section"]

_NAMED = 2  # operations named of a link
_WIDE = 80


def busy_section(links: Sequence[BusyLink], step_time_s: float) -> Section:
    """Return the part of a report about the busiest link of each kind."""
    rows = tuple(
        (
            link.link,
            link.kind,
            format_bandwidth(link.usable),
            _mib(link.nbytes),
            _ms(link.busy_s),
            f"{link.busy_s / step_time_s:.1%}",
            _loaded_by(link),
        )
        for link in links
    )
    return Section(
        title="Links: the busiest of each kind, and what crosses it in a step",
        headers=("link", "kind", "carries", "MiB", "busy ms", "of step", "by"),
        rows=rows,
    )


def _loaded_by(link: BusyLink) -> str:
    named = [f"{name} {nbytes / link.nbytes:.0%}" for name, nbytes in link.operations[:_NAMED]]
    more = len(link.operations) - len(named)
    return textwrap.shorten(", ".join(named) + (f", {more} more" if more > 0 else ""), _WIDE, placeholder=" ...")


def damage_section(damage: Sequence[Damage]) -> Section:
    """Return the part of a report about damaged links."""
    rows = tuple(
        (
            item.pattern,
            str(item.links),
            f"{item.factor:g}" if item.factor else "missing",
            _mib(item.nbytes),
            "" if item.busy_s is None else _ms(item.busy_s),
            _ms(item.whole_step_time_s),
            _ms(item.step_time_s),
        )
        for item in damage
    )
    return Section(
        title="Damaged links: bytes of the busiest in a step, and the step without and with the damage, in ms",
        headers=("links", "number", "left", "MiB", "busy", "whole", "damaged"),
        rows=rows,
        notes=tuple(f"{item.pattern}: {item.reason}" for item in damage),
    )


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:.2f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"

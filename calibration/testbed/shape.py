"""What a testbed looks like: how many ranks each node has, and what its links carry."""

from __future__ import annotations

import re
from dataclasses import dataclass

from foreshard.topologies.errors import InputError, UnitError, check_all
from foreshard.topologies.units import BYTES, BYTES_PER_S, format_bytes, parse_quantity

__all__ = ["FRAME_BYTES", "MTU", "PAYLOAD_SHARE", "BedLink", "BedShape", "bed_link", "check_bed", "parse_shape"]

MTU = 9000
"""Bytes of an IP packet between nodes: jumbo frames, as clusters use them; fewer packets cost the cores less."""

FRAME_BYTES = MTU + 14  # the Ethernet header, which the shaper counts as well
PAYLOAD_SHARE = (MTU - 20 - 20 - 12) / FRAME_BYTES  # less the headers of IP and TCP and TCP's time stamps

_MOST_NODES, _MOST_RANKS = 200, 1024
_RATES = (125e3, 125e9)  # 1 Mbit/s .. 1 Tbit/s, in B/s
_WAKE_UP_S = 0.5e-3
_LEAST_BURST_BYTES = 128 * 1024.0
# Measured on 2 cores with 3 busy processes beside the transfers (tbf, both directions at once, 16 MiB): a burst of
# 32-64 KiB loses 4-6 % of 500 Mbit/s and up to 40 % of 2 Gbit/s, 128 KiB at most 2 % of either. A burst of 1 MB loses
# nothing, but lets 1 MB through at once after every pause: 1 MiB took 1-7 ms instead of 17 at 500 Mbit/s.


@dataclass(frozen=True, kw_only=True, slots=True)
class BedShape:
    """Nodes of a testbed: `ranks_per_node` has one entry for each, ranks are counted node after node."""

    ranks_per_node: tuple[int, ...]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.ranks_per_node)

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return sum(self.ranks_per_node)

    def __str__(self) -> str:
        """The shape as it is written: "2x2", or "2+1" where nodes differ."""
        if len(set(self.ranks_per_node)) == 1:
            return f"{self.nodes}x{self.ranks_per_node[0]}"
        return "+".join(map(str, self.ranks_per_node))


@dataclass(frozen=True, kw_only=True, slots=True)
class BedLink:
    """One node's link to the switch, in each direction: rate in B/s of whole frames, and the burst in bytes that may
    pass at once after a pause."""

    rate_bytes_per_s: float
    burst_bytes: float

    @property
    def payload_bytes_per_s(self) -> float:
        """What is left for data beside the headers of full packets, in B/s."""
        return self.rate_bytes_per_s * PAYLOAD_SHARE


def parse_shape(text: str) -> BedShape:
    """Return the shape of "2x2" (nodes x ranks in each) or "2+1" (ranks of each node). Raises InputError."""
    if match := re.fullmatch(r"\s*(\d{1,18})\s*[xX]\s*(\d{1,18})\s*", text):
        nodes, ranks = map(int, match.groups())
        sizes = (ranks,) * min(nodes, _MOST_NODES + 1)
    elif re.fullmatch(r"\s*\d{1,18}(\s*\+\s*\d{1,18})+\s*", text):
        sizes = tuple(map(int, text.split("+")))
    else:
        raise InputError(f"{text!r}: expected nodes x ranks in each, such as 2x2, or ranks of each node, such as 2+1")
    if not sizes or not all(sizes):
        raise InputError(f"{text!r}: there is a node without ranks, or no node at all")
    if len(sizes) > _MOST_NODES or sum(sizes) > _MOST_RANKS:
        raise InputError(f"{text!r}: one machine plays at most {_MOST_NODES} nodes and {_MOST_RANKS} ranks")
    return BedShape(ranks_per_node=sizes)


def bed_link(rate: str | float, burst: str | float | None = None) -> BedLink:
    """Return a link of `rate` ("500 Mbit/s" or B/s) with a burst ("1 MB" or bytes; None: what the rate needs).

    Without a burst it is what passes in the half millisecond by which a busy machine wakes the shaper late, at least
    128 KiB. Raises InputError for what cannot be shaped.
    """
    problems: list[str] = []
    rate_bytes_per_s = _quantity("--rate", rate, BYTES_PER_S, problems)
    burst_bytes = None if burst is None else _quantity("--burst", burst, BYTES, problems)
    if rate_bytes_per_s is not None and not _RATES[0] <= rate_bytes_per_s <= _RATES[1]:
        problems.append(f"--rate {rate}: expected 1 Mbit/s to 1 Tbit/s")
    if burst_bytes is not None and not 2 * MTU <= burst_bytes < 2**31:
        problems.append(f"--burst {burst}: expected at least two packets, {format_bytes(2 * MTU)}, and less than 2 GiB")
    if problems or rate_bytes_per_s is None:
        raise InputError(problems)
    if burst_bytes is None:
        burst_bytes = max(_LEAST_BURST_BYTES, rate_bytes_per_s * _WAKE_UP_S)
    return BedLink(rate_bytes_per_s=rate_bytes_per_s, burst_bytes=burst_bytes)


def check_bed(shape: str, rate: str, burst: str | None = None) -> None:
    """Return if a testbed can look like that; raises InputError with every mistake."""
    check_all(lambda: parse_shape(shape), lambda: bed_link(rate, burst))


def _quantity(option: str, value: str | float, units: dict[str, float], problems: list[str]) -> float | None:
    if not isinstance(value, str):
        return float(value)
    try:
        return parse_quantity(value, units)
    except UnitError as error:
        problems.append(f"{option} {error}")
        return None

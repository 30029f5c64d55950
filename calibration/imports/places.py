"""How many ranks of a run lie in each node: what a file tells of it, what the user says, and whether they agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from foreshard.calibration.logs.nccl_lines import DeviceLine
from foreshard.topologies.errors import InputError

__all__ = ["SAID", "Told", "listed_shape", "shape_of"]

Shape = tuple[int, ...]
_MOST_RANKS = 1 << 20  # more than any cluster file can have
SAID = "--ranks-per-node"
"""The option by which users say it, and not their machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the user says of the machine: so many `nodes`, so many ranks in each; None where nothing is said.

    `per_node_of` names the option that `per_node` is from.
    """

    nodes: int | None = None
    per_node: int | None = None
    per_node_of: str = SAID

    @property
    def ranks(self) -> int | None:
        """All ranks, if both are said."""
        return None if self.nodes is None or self.per_node is None else self.nodes * self.per_node


def listed_shape(devices: Sequence[DeviceLine], ranks: int | None) -> Shape | None:
    """Return the ranks of each host in a device list, the largest first; None if it does not list all ranks once."""
    if not devices or len(devices) != (ranks or len(devices)):
        return None
    if {device.rank for device in devices} != set(range(len(devices))):
        return None
    return tuple(sorted(Counter(device.host for device in devices).values(), reverse=True))


def shape_of(ranks: int, listed: Shape | None, told: Told) -> Shape:
    """Return how many of `ranks` lie in each node, the largest first.

    What the file lists holds; else the ranks fill nodes as told. Raises InputError if neither says it, or they
    contradict each other.
    """
    if ranks > _MOST_RANKS:
        raise InputError(f"it is of {ranks} ranks: expected at most {_MOST_RANKS}")
    if listed is not None:
        _check(listed, told)
        return listed
    if told.ranks is not None and told.ranks != ranks:
        raise InputError(
            f"it is of {ranks} ranks, but --nodes {told.nodes} with {told.per_node_of} {told.per_node} are {told.ranks}"
        )
    if told.per_node is not None:
        if ranks % told.per_node:
            raise InputError(
                f"it is of {ranks} ranks, which do not fill nodes of {told.per_node} ({told.per_node_of}): give "
                "--ranks-per-node as it ran"
            )
        return (told.per_node,) * (ranks // told.per_node)
    if told.nodes is not None:
        if ranks % told.nodes:
            raise InputError(f"it is of {ranks} ranks, which cannot be shared evenly by --nodes {told.nodes}")
        return (ranks // told.nodes,) * told.nodes
    raise InputError(
        f"it is of {ranks} ranks, but does not tell which of them share a node: give --ranks-per-node or --nodes"
    )


def _check(listed: Shape, told: Told) -> None:
    if told.nodes is not None and told.nodes != len(listed):
        raise InputError(f"it lists {len(listed)} nodes, but --nodes says {told.nodes}: leave the option out")
    if told.per_node is not None and told.per_node_of == SAID and set(listed) != {told.per_node}:
        held = " and ".join(map(str, sorted(set(listed), reverse=True)))
        raise InputError(f"its nodes have {held} ranks, but --ranks-per-node says {told.per_node}: leave it out")

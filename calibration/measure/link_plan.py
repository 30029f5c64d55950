"""What `foreshard calibrate links` measures: which collectives, over which groups, of which sizes. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import CollectiveKind

__all__ = ["KINDS", "GroupShape", "LinkPlan", "Pair", "group_shapes", "pairs_of", "uneven_splits"]

KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
ELEMENT_BYTES = 4  # fp32, nccl-tests' default
UNEVEN = ("towards one rank", "towards the next rank", "skewed")
"""Patterns of all_to_all that are measured beside the even one, to check what a prediction makes of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkPlan:
    """Sizes from `smallest` to `largest` bytes, each `factor` times the one before, as long as one run takes no longer
    than `longest_run_s`; every point is repeated for about `point_s` seconds, `least_runs` to `most_runs` times.

    `buffer_bytes` is what all buffers of a rank may take together.
    """

    kinds: tuple[CollectiveKind, ...] = KINDS
    smallest: int = 1 << 10
    largest: int = 256 << 20
    factor: int = 2
    point_s: float = 1.0
    least_runs: int = 7
    most_runs: int = 200
    longest_run_s: float = 3.0
    buffer_bytes: int = 1 << 30
    seed: int = 0

    def sizes(self, members: int) -> list[int]:
        """Sizes in bytes, rounded down so that each of `members` gets as many whole elements, none twice."""
        unit = ELEMENT_BYTES * members
        # Send and receive buffers, and the copies that gloo makes of what it reduces.
        limit = min(self.largest, self.buffer_bytes // 4)
        found, size = [], self.smallest
        while size <= limit:
            found.append(max(unit, size // unit * unit))
            size *= self.factor
        return list(dict.fromkeys(found))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GroupShape:
    """Groups that run a collective at once, all alike: how many of a group's ranks lie in each node, largest first."""

    groups: Groups
    ranks_per_node: tuple[int, ...]
    groups_per_node: int

    @property
    def key(self) -> tuple[tuple[int, ...], int, int]:
        """What tells it from other shapes, as a profile's curves are told apart."""
        return self.ranks_per_node, len(self.groups), self.groups_per_node

    @property
    def members(self) -> int:
        """Ranks of a group."""
        return sum(self.ranks_per_node)

    def __str__(self) -> str:
        """As "2+2 ranks" or "1+1 ranks, 2 groups at once"."""
        at_once = f", {len(self.groups)} groups at once" if len(self.groups) > 1 else ""
        return "+".join(map(str, self.ranks_per_node)) + f" ranks{at_once}"


def group_shapes(node_of: NDArray[np.int64]) -> list[GroupShape]:
    """Return the shapes of groups that layouts of this world can use, the world first; `node_of` [ranks].

    Groups of every size that divides the world, of neighbouring ranks and of ranks at equal distances, as sharding and
    replica groups are placed; all groups of a size run at once. Sizes whose groups would not be alike are left out.
    """
    world = len(node_of)
    found: dict[object, GroupShape] = {}
    for size in (world, *(size for size in range(2, world) if world % size == 0)):
        grid = np.arange(world).reshape(-1, size)
        for members in (grid, np.arange(world).reshape(size, -1).T):
            shape = _shape(Groups(members), node_of)
            if shape is not None and shape.members > 1:
                found.setdefault(shape.key, shape)
    return list(found.values())


def _shape(groups: Groups, node_of: NDArray[np.int64]) -> GroupShape | None:
    in_each = (np.unique(node_of[group], return_counts=True)[1].tolist() for group in groups.members)
    counts = {tuple(sorted(ranks, reverse=True)) for ranks in in_each}
    if len(counts) != 1:
        return None
    in_node = np.bincount(np.concatenate([np.unique(node_of[group]) for group in groups.members]))
    return GroupShape(groups=groups, ranks_per_node=counts.pop(), groups_per_node=int(in_node.max()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two ranks that send to each other, and whether they share a node."""

    ranks: tuple[int, int]
    same_node: bool


def pairs_of(node_of: NDArray[np.int64]) -> list[Pair]:
    """Return one pair of ranks of each kind: of one node, of two nodes."""
    same = [*zip(*np.nonzero(node_of[:, None] == node_of), strict=True)]
    different = [*zip(*np.nonzero(node_of[:, None] != node_of), strict=True)]
    found = [next(((int(a), int(b)) for a, b in pairs if a < b), None) for pairs in (same, different)]
    return [Pair(ranks=ranks, same_node=not index) for index, ranks in enumerate(found) if ranks is not None]


def uneven_splits(pattern: str, members: int, nbytes: int, seed: int) -> NDArray[np.int64]:
    """Return the elements that each member sends to each, [members, members], `nbytes` out of every member.

    "towards one rank": half of everything goes to the first; "towards the next rank": half to the neighbour; "skewed":
    shares drawn evenly from all possible ones (Dirichlet), own to every sender.
    """
    elements = nbytes // ELEMENT_BYTES
    if pattern == "skewed":
        shares = np.random.default_rng(seed).dirichlet(np.ones(members), members)
    else:
        shares = np.full((members, members), 0.5 / members)
        favoured = np.zeros(members, np.int64) if pattern == "towards one rank" else np.roll(np.arange(members), -1)
        shares[np.arange(members), favoured] += 0.5
    splits = np.floor(shares * elements).astype(np.int64)
    splits[np.arange(members), np.arange(members)] += elements - splits.sum(axis=1)
    return splits

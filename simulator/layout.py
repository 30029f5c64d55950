"""Who shards with whom: sharding groups, replica groups and their placement on the ranks (2D parallelism)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from foreshard.topologies.errors import InputError

__all__ = ["Groups", "Layout", "Placement", "ResolvedLayout", "Sync", "resolve_layout"]

Placement = Literal["contiguous", "interleaved"]
Sync = Literal["weights", "gradients"]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The 2D layout as a user writes it; `sharding_group_size` None is global sharding over the whole world."""

    sharding_group_size: Annotated[int, Ge(1)] | None = None
    placement: Placement = "contiguous"
    sync: Sync = "weights"
    sync_interval: Annotated[int, Ge(1)] = 1


class Groups:
    """Disjoint groups of global ranks that together cover the world, in a fixed member order."""

    def __init__(self, members: Iterable[Sequence[int] | IntArray]) -> None:
        self.members: tuple[IntArray, ...] = tuple(np.asarray(group, dtype=np.int64) for group in members)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return f"Groups({len(self)} of {sorted({len(group) for group in self.members})} ranks)"

    @cached_property
    def world_size(self) -> int:
        """Ranks in all groups together."""
        return sum(len(group) for group in self.members)

    @cached_property
    def group_of(self) -> IntArray:
        """Group index of each rank, [ranks]."""
        return self._scatter(np.full(len(group), index) for index, group in enumerate(self.members))

    @cached_property
    def position_of(self) -> IntArray:
        """Position of each rank in its own group, [ranks]."""
        return self._scatter(np.arange(len(group)) for group in self.members)

    @cached_property
    def sizes(self) -> IntArray:
        """Members of each group, [groups]."""
        return np.array([len(group) for group in self.members], dtype=np.int64)

    def _scatter(self, values: Iterable[IntArray]) -> IntArray:
        out = np.empty(self.world_size, dtype=np.int64)
        for group, value in zip(self.members, values, strict=True):
            out[group] = value
        return out

    @classmethod
    def world(cls, world_size: int) -> Groups:
        """One group of all ranks."""
        return cls([np.arange(world_size)])


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedLayout:
    """Every rank's sharding group and replica group; rank at position p of its sharding group owns shard p."""

    world_size: int
    layout: Layout
    sharding: Groups
    replica: Groups

    @property
    def group_size(self) -> int:
        """Ranks that shard one replica of the tables."""
        return int(self.sharding.sizes[0])

    @property
    def replicas(self) -> int:
        """Copies of every shard."""
        return len(self.sharding)

    def local_group_size(self, node_of: IntArray) -> int:
        """Neighbouring positions of a sharding group that always share a node; `node_of` [ranks] is the cluster's.

        The greatest block size that no boundary between nodes cuts: 8 for groups of 32 on whole nodes of 8, 2 for
        strided groups that have two ranks in each node.
        """
        nodes = node_of[np.stack(self.sharding.members)]
        boundaries = np.flatnonzero((nodes[:, 1:] != nodes[:, :-1]).any(axis=0)) + 1
        return int(np.gcd.reduce(boundaries, initial=self.group_size))


def resolve_layout(layout: Layout, world_size: int) -> ResolvedLayout:
    """Return the groups of `layout` on `world_size` ranks.

    contiguous: sharding group i is {iL, ..., iL + L - 1}. interleaved (TorchRec's default): {i, i + G, i + 2G, ...}
    with G = world_size / L. Raises InputError if L does not divide the world.
    """
    size = layout.sharding_group_size or world_size
    if size > world_size or world_size % size:
        divisors = [d for d in range(1, world_size + 1) if world_size % d == 0]
        raise InputError(
            f"layout.sharding_group_size = {size} does not divide the world of {world_size} ranks: use one of {divisors}"
        )
    grid = np.arange(world_size).reshape(-1, size)
    if layout.placement == "interleaved":
        grid = np.arange(world_size).reshape(size, -1).T
    return ResolvedLayout(world_size=world_size, layout=layout, sharding=Groups(grid), replica=Groups(grid.T))

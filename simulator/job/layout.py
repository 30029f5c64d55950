"""Who shards with whom: sharding groups, replica groups and their placement on the ranks (2D parallelism)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from foreshard.topologies.errors import InputError

__all__ = ["Groups", "Layout", "Placement", "ResolvedLayout", "SameSize", "Sync", "resolve_layout"]

Placement = Literal["contiguous", "interleaved"]
Sync = Literal["weights", "gradients", "fully_sharded"]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The 2D layout as a user writes it; without group size and groups it is global sharding over the whole world.

    `groups` names the ranks of every sharding group, in the order of their positions, instead of `sharding_group_size`
    and `placement`. `sync` says what replicas do: average whole weights (every `sync_interval` steps), exchange the
    gradients of the rows that the step touched, or hold a part of each other's weights (TorchRec's FULLY_SHARDED).
    """

    sharding_group_size: Annotated[int, Ge(1)] | None = None
    groups: tuple[tuple[Annotated[int, Ge(0)], ...], ...] | None = None
    placement: Placement = "contiguous"
    sync: Sync = "weights"
    sync_interval: Annotated[int, Ge(1), Le(10**12)] = 1


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

    @cached_property
    def _in_order(self) -> tuple[IntArray, IntArray]:
        """All ranks group by group, and where each group begins."""
        ranks = np.concatenate([np.zeros(0, dtype=np.int64), *self.members])
        return ranks, np.cumsum(self.sizes) - self.sizes

    def ranks_of(self, groups: IntArray) -> IntArray:
        """The ranks of some groups, group by group in the order of their members."""
        ranks, first = self._in_order
        if len(groups) == len(self) and (np.diff(groups) > 0).all():
            return ranks
        sizes = self.sizes[groups]
        before = np.cumsum(sizes) - sizes
        some: IntArray = ranks[np.arange(int(sizes.sum())) + np.repeat(first[groups] - before, sizes)]
        return some

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
    """Every rank's sharding group and replica group; rank at position p of its sharding group owns shard p.

    `replica` are the ranks at equal positions, which hold the same shards; None where sharding groups differ in size,
    for there shards overlap in parts (see `overlap`).
    """

    world_size: int
    layout: Layout
    sharding: Groups
    replica: Groups | None

    @property
    def even(self) -> bool:
        """Whether all sharding groups have the same size."""
        return self.replica is not None

    @property
    def group_size(self) -> int:
        """Ranks that shard one replica of the tables; those of the first group where groups differ in size."""
        return int(self.sharding.sizes[0])

    @property
    def replicas(self) -> int:
        """Copies of every row, one in each sharding group."""
        return len(self.sharding)

    def local_group_size(self, node_of: IntArray) -> int:
        """Neighbouring positions of a sharding group that always share a node; `node_of` [ranks] is the cluster's.

        The greatest block size that no boundary between nodes cuts: 8 for groups of 32 on whole nodes of 8, 2 for
        strided groups that have two ranks in each node. Groups must have the same size.
        """
        nodes = node_of[np.stack(self.sharding.members)]
        boundaries = np.flatnonzero((nodes[:, 1:] != nodes[:, :-1]).any(axis=0)) + 1
        return int(np.gcd.reduce(boundaries, initial=self.group_size))

    def group_shapes(self, node_of: IntArray) -> tuple[tuple[int, int], ...]:
        """(Ranks of a group, neighbouring positions that share a node) for each size, as `by_size` orders them."""
        return tuple(
            (part.layout.group_size, part.layout.local_group_size(node_of[part.ranks])) for part in self.by_size()
        )

    def by_size(self) -> tuple[SameSize, ...]:
        """The groups of each size as a layout of their own, sizes in the order in which they first occur."""
        if self.even:
            return (SameSize(layout=self, ranks=np.arange(self.world_size)),)
        sizes = dict.fromkeys(self.sharding.sizes.tolist())
        return tuple(self._of_size(size) for size in sizes)

    def size_index(self, rank: int) -> int:
        """Which of the sizes of `by_size` the sharding group of a rank has."""
        sizes = list(dict.fromkeys(self.sharding.sizes.tolist()))
        return sizes.index(int(self.sharding.sizes[self.sharding.group_of[rank]]))

    def _of_size(self, size: int) -> SameSize:
        groups = [group for group in self.sharding.members if len(group) == size]
        grid = np.arange(size * len(groups)).reshape(len(groups), size)
        layout = ResolvedLayout(world_size=grid.size, layout=self.layout, sharding=Groups(grid), replica=Groups(grid.T))
        return SameSize(layout=layout, ranks=np.concatenate(groups))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SameSize:
    """The sharding groups of one size: `layout` numbers their ranks anew, `ranks` [its ranks] are their true ranks."""

    layout: ResolvedLayout
    ranks: IntArray


def resolve_layout(layout: Layout, world_size: int) -> ResolvedLayout:
    """Return the groups of `layout` on `world_size` ranks.

    contiguous: sharding group i is {iL, ..., iL + L - 1}. interleaved (TorchRec's default): {i, i + G, i + 2G, ...}
    with G = world_size / L. Raises InputError if L does not divide the world, or with every rank that `groups` forget
    or name twice.
    """
    problems = [*_check_groups(layout, world_size), *_check_sync(layout)]
    if problems:
        raise InputError(problems)
    if layout.groups is not None:
        return _explicit(layout, Groups(layout.groups))
    size = layout.sharding_group_size or world_size
    grid = np.arange(world_size).reshape(-1, size)
    if layout.placement == "interleaved":
        grid = np.arange(world_size).reshape(size, -1).T
    return ResolvedLayout(world_size=world_size, layout=layout, sharding=Groups(grid), replica=Groups(grid.T))


def _explicit(layout: Layout, groups: Groups) -> ResolvedLayout:
    even = len(set(groups.sizes.tolist())) == 1
    replica = Groups(np.stack(groups.members).T) if even else None
    return ResolvedLayout(world_size=groups.world_size, layout=layout, sharding=groups, replica=replica)


def _check_groups(layout: Layout, world_size: int) -> Iterator[str]:
    size = layout.sharding_group_size or world_size
    if layout.groups is not None:
        yield from _check_explicit(layout, layout.groups, world_size)
    elif size > world_size or world_size % size:
        divisors = [d for d in range(1, world_size + 1) if world_size % d == 0]
        where = f"layout.sharding_group_size = {size} does not divide the world of {world_size} ranks"
        yield f"{where}: use one of {divisors}"


def _check_explicit(layout: Layout, groups: Sequence[Sequence[int]], world_size: int) -> Iterator[str]:
    if layout.sharding_group_size is not None:
        yield "layout.groups and layout.sharding_group_size both say the sharding groups: keep one"
    if layout.placement != "contiguous":
        yield "layout.groups name the ranks of every group, so layout.placement means nothing: keep one"
    if not groups or not all(groups):
        yield "layout.groups: a group without ranks: name the ranks of every group, as in [[0, 1], [2, 3]]"
    counts = Counter(rank for group in groups for rank in group)
    absent = [rank for rank in sorted(counts) if rank >= world_size]
    if absent:
        yield f"layout.groups: {_ranks(absent)} not in this world, whose ranks are 0 to {world_size - 1}"
    double = [rank for rank in sorted(counts) if counts[rank] > 1]
    if double:
        yield f"layout.groups: {_ranks(double)} named more than once: a rank is in one sharding group"
    missing = [rank for rank in range(world_size) if rank not in counts]
    if missing and groups:
        yield f"layout.groups: {_ranks(missing)} in no group: every rank of the world must be in one"


def _check_sync(layout: Layout) -> Iterator[str]:
    if layout.sync == "gradients" and layout.sync_interval != 1:
        yield (
            f'layout.sync = "gradients" exchanges gradients in every step, so sync_interval = {layout.sync_interval} '
            'contradicts it: set sync_interval = 1, or use sync = "weights"'
        )
    if layout.sync != "fully_sharded":
        return
    if layout.sync_interval != 1:
        yield (
            f'layout.sync = "fully_sharded" averages weights in every step, so sync_interval = {layout.sync_interval} '
            'contradicts it: drop one of the two, or use sync = "weights"'
        )
    if layout.groups and len({len(group) for group in layout.groups}) > 1:
        yield (
            'layout.sync = "fully_sharded" cuts a shard into equal parts over its replicas, which groups of different '
            'sizes do not have: use sync = "weights" or "gradients", or groups of one size'
        )


def _ranks(ranks: Sequence[int], named: int = 8) -> str:
    """Ranks in words with their verb: "rank 3 is", "ranks 3, 4 and 5 more are"."""
    listed = ", ".join(map(str, ranks[:named])) + (f" and {len(ranks) - named} more" if len(ranks) > named else "")
    return f"rank {listed} is" if len(ranks) == 1 else f"ranks {listed} are"

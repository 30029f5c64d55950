"""What a collective becomes: phases of link loads, and the bound that holds whatever the algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.cluster import Cluster

__all__ = ["Bundle", "Draft", "Lowered", "LoweredGroups", "LoweredPart", "Phase", "runs"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """Wait `latency_s`, then move nbytes[k] over links[k] together, in no less than `floor_s`.

    A port that reaches only a share of what its link carries takes up more of the link than its bytes: stretch[k] >= 1
    times as much. So one collective alone takes as long as was measured, and two at once share what the port reaches.
    Where a measured time is shorter than the link is stated to allow, the bytes take up less: stretch[k] below 1.
    """

    latency_s: float
    links: NDArray[np.int64]
    nbytes: NDArray[np.float64]
    floor_s: float
    stretch: NDArray[np.float64] | float = 1.0

    def transfer_s(self, usable: NDArray[np.float64]) -> float:
        """Seconds the bytes take when nothing else runs, on links that carry `usable` [all links] bytes/s."""
        busy = self.nbytes * self.stretch / usable[self.links]
        return max(self.floor_s, float(busy.max(initial=0.0)))


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """One group's collective: its algorithm, phases one after the other, and the bound with the link that sets it.

    `peers` is the most peers in other nodes that a member of an all-to-all posts to; 0 for what has none or hides them.
    Where ranks share cores with what carries their collectives, it takes `beside` times as long while all of them
    compute, and their work takes `slows` times as long while it runs.
    """

    algorithm: str
    phases: tuple[Phase, ...]
    bound_s: float
    bottleneck: str
    peers: int = 0
    beside: float = 1.0
    slows: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A lowered collective whose bound is still a link number: `bottleneck` on which `bound_s` is reached."""

    algorithm: str
    phases: tuple[Phase, ...]
    bound_s: float
    bottleneck: int | None
    peers: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bundle:
    """One phase of several groups at once: those numbered groups[i], ascending, [n], each as a `Phase` says.

    Group i has the entries first[i] to first[i + 1] of `links`, `nbytes` and `stretch`, [entries].
    """

    groups: IntArray
    latency_s: FloatArray
    floor_s: FloatArray
    first: IntArray
    links: IntArray
    nbytes: FloatArray
    stretch: FloatArray

    @classmethod
    def of(cls, phases: Sequence[tuple[int, Phase]]) -> Bundle:
        """The phases of some groups, given with their numbers in ascending order."""
        none = np.zeros(0)
        counts = [len(phase.links) for _, phase in phases]
        return cls(
            groups=np.array([group for group, _ in phases], dtype=np.int64),
            latency_s=np.array([phase.latency_s for _, phase in phases]),
            floor_s=np.array([phase.floor_s for _, phase in phases]),
            first=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
            links=np.concatenate([none, *(phase.links for _, phase in phases)]).astype(np.int64),
            nbytes=np.concatenate([none, *(phase.nbytes for _, phase in phases)]),
            stretch=np.concatenate([none, *(phase.stretch + 0 * phase.nbytes for _, phase in phases)]),
        )

    @classmethod
    def join(cls, bundles: Sequence[Bundle]) -> Bundle:
        """The same phase of different groups in one bundle."""
        if len(bundles) == 1:
            return bundles[0]

        counts = np.concatenate([np.diff(bundle.first) for bundle in bundles])
        whole = cls(
            groups=np.concatenate([bundle.groups for bundle in bundles]),
            latency_s=np.concatenate([bundle.latency_s for bundle in bundles]),
            floor_s=np.concatenate([bundle.floor_s for bundle in bundles]),
            first=np.concatenate([[0], np.cumsum(counts)]),
            links=np.concatenate([bundle.links for bundle in bundles]),
            nbytes=np.concatenate([bundle.nbytes for bundle in bundles]),
            stretch=np.concatenate([bundle.stretch for bundle in bundles]),
        )
        return whole.take(np.argsort(whole.groups))

    def take(self, rows: IntArray) -> Bundle:
        """Some of the groups, by their place in the bundle."""
        if len(rows) == len(self.groups) and (np.diff(rows) > 0).all():
            return self
        counts = np.diff(self.first)[rows]
        at = runs(self.first[:-1][rows], counts)
        return Bundle(
            groups=self.groups[rows],
            latency_s=self.latency_s[rows],
            floor_s=self.floor_s[rows],
            first=np.concatenate([[0], np.cumsum(counts)]),
            links=self.links[at],
            nbytes=self.nbytes[at],
            stretch=self.stretch[at],
        )

    def phase(self, row: int) -> Phase:
        """The phase of one group, by its place in the bundle."""
        at = slice(int(self.first[row]), int(self.first[row + 1]))
        latency_s, floor_s = float(self.latency_s[row]), float(self.floor_s[row])
        return Phase(latency_s, self.links[at], self.nbytes[at], floor_s, self.stretch[at])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoweredGroups:
    """All groups of a collective, lowered: `phases` hold every group that has so many phases.

    `algorithms` [groups]; bound_s [groups] is reached on link `bottleneck` [groups], -1 where there is none; `peers`
    [groups]. One group by its number is a `Lowered`, one of `given` where groups were lowered one by one.
    """

    cluster: Cluster
    algorithms: Sequence[str]
    phases: tuple[Bundle, ...]
    bound_s: FloatArray
    bottleneck: IntArray
    peers: IntArray
    given: Sequence[Lowered] = ()

    @classmethod
    def of(cls, cluster: Cluster, groups: Sequence[Lowered]) -> LoweredGroups:
        """Groups that were lowered one by one."""
        levels = max((len(one.phases) for one in groups), default=0)
        having = [[n for n, one in enumerate(groups) if len(one.phases) > level] for level in range(levels)]
        return cls(
            cluster=cluster,
            algorithms=[one.algorithm for one in groups],
            phases=tuple(Bundle.of([(n, groups[n].phases[level]) for n in ns]) for level, ns in enumerate(having)),
            bound_s=np.array([one.bound_s for one in groups]),
            bottleneck=np.full(len(groups), -1),
            peers=np.array([one.peers for one in groups], dtype=np.int64),
            given=groups,
        )

    @classmethod
    def join(cls, cluster: Cluster, parts: Sequence[LoweredPart]) -> LoweredGroups:
        """Parts that have all groups between them."""
        order = np.argsort(np.concatenate([part.groups for part in parts]))
        names = [name for part in parts for name in [part.algorithm] * len(part.groups)]
        levels = zip_longest(*(part.phases for part in parts))
        return cls(
            cluster=cluster,
            algorithms=[names[group] for group in order.tolist()],
            phases=tuple(Bundle.join([bundle for bundle in level if bundle is not None]) for level in levels),
            bound_s=np.concatenate([part.bound_s for part in parts])[order],
            bottleneck=np.concatenate([part.bottleneck for part in parts])[order],
            peers=np.concatenate([part.peers for part in parts])[order],
        )

    def __len__(self) -> int:
        return len(self.bound_s)

    def __iter__(self) -> Iterator[Lowered]:
        return (self[group] for group in range(len(self)))

    def __getitem__(self, group: int) -> Lowered:
        if not 0 <= group < len(self):
            raise IndexError(group)
        if self.given:
            return self.given[group]
        link = int(self.bottleneck[group])
        phases = []
        for bundle in self.phases:
            row = int(np.searchsorted(bundle.groups, group))
            if row < len(bundle.groups) and bundle.groups[row] == group:
                phases.append(bundle.phase(row))
        return Lowered(
            self.algorithms[group],
            tuple(phases),
            float(self.bound_s[group]),
            self.cluster.link_name(link) if link >= 0 else "",
            int(self.peers[group]),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoweredPart:
    """Groups of a collective that run the same algorithm; fields as in `LoweredGroups`."""

    algorithm: str
    groups: IntArray
    phases: tuple[Bundle, ...]
    bound_s: FloatArray
    bottleneck: IntArray
    peers: IntArray


def runs(first: IntArray, counts: IntArray) -> IntArray:
    """Return the places first[i], first[i] + 1, ... of counts[i] entries each, one run after the other."""
    before = np.cumsum(counts) - counts
    places: IntArray = np.arange(int(counts.sum())) + np.repeat(first - before, counts)
    return places

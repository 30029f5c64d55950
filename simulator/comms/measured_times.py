"""Collectives that take the time a profile measured, with bytes on the links, so that what is in flight still shares.

A collective of a measured kind and shape waits for the curve's latency and then moves its bytes in no less than the
rest of the measured time T. Bytes are those of the model (see `collectives`); where the links, as they are stated to
be, would not carry them in that time, the measurement is right and they take up less of the links. A curve that begins
above 16 KiB begins with transfers: the latency is then the model's, and what is smaller takes as much less than the
first point as the model says.

Where collectives were measured beside work too, the engine slows them down while ranks compute: latency and bytes then
are one transfer (see `step.shared_cores`).

How many groups run at once matters: if a curve of as many groups of this shape was measured, T is its time, and what
the groups together put on a link fits into it; else T is the time of one group alone and groups share links. An
all_to_all whose parts differ takes the curve at the size S of the uniform one that keeps the busiest link as long:

    S = max over links (bytes / bandwidth) / max over links (bytes of a uniform one of 1 byte / bandwidth)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.comms.collectives import lower
from foreshard.simulator.comms.lowering import Lowered, Phase
from foreshard.simulator.comms.single import alone_s, uniform_collective
from foreshard.simulator.comms.symmetry import Template, template_of
from foreshard.simulator.job.program import Collective, CollectiveKind
from foreshard.simulator.measured.curves import Beside, Curve
from foreshard.simulator.measured.profile import CollectiveCurve, Profile
from foreshard.topologies.cluster import Cluster

__all__ = ["CurveKey", "MeasuredCollectives", "Timed", "shape_words"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_LATENCY_BYTES = 16 << 10  # takes about as long as a byte: 16 us over a link of 1 GB/s whose latency is tens of us
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CurveKey:
    """What a curve was measured for, or would have to be; see `CollectiveCurve`."""

    kind: CollectiveKind
    ranks_per_node: Shape
    groups: int = 1
    groups_per_node: int = 1

    @property
    def words(self) -> str:
        """As people say it: "all_to_all of 2+2 ranks, 2 groups at once"."""
        at_once = "" if self.groups == 1 else f", {self.groups} groups at once"
        return f"{self.kind} of {shape_words(self.ranks_per_node)} ranks{at_once}"


def shape_words(shape: Shape) -> str:
    """Return ranks of a group by node in words, "2+2", "8 x 8" for many nodes of as many."""
    alike = len(set(shape)) == 1 and len(shape) > 3
    return f"{len(shape)} x {shape[0]}" if alike else "+".join(map(str, shape))


@dataclass(frozen=True, slots=True)
class Timed:
    """One group's collective on a curve: the size at which it is read, in bytes, and what that gives."""

    key: CurveKey
    curve: Curve
    nbytes: float
    seconds: float
    latency_s: float
    beside: Beside | None = None

    @property
    def slowed(self) -> tuple[float, float]:
        """How many times as long it takes beside work of all ranks, and that work beside it; 1 if not measured."""
        if self.beside is None:
            return 1.0, 1.0
        nbytes = max(self.nbytes, self.curve.range_bytes[0])
        return max(1.0, self.beside.seconds(nbytes) / self.curve.seconds(nbytes)), self.beside.slows(nbytes)

    @property
    def spread(self) -> tuple[float, float]:
        """The 10 % and the 90 % quantile of single runs, as logarithms over `seconds`."""
        return self.curve.spread(max(self.nbytes, self.curve.range_bytes[0]))

    @property
    def below(self) -> float:
        """How far the size is below the measured range, as a factor above 1; 1 if it is not, and without bytes."""
        return self.curve.below(self.nbytes) if self.nbytes > 0 else 1.0

    @property
    def above(self) -> float:
        """How far the size is above the measured range, as a factor above 1; 1 if it is not."""
        return self.curve.above(self.nbytes) if self.nbytes > 0 else 1.0


class MeasuredCollectives:
    """The collectives of a profile; `lower` does for them what `collectives.lower` does for the model.

    What a collective becomes is worked out once, since steps are simulated many times.
    """

    def __init__(self, profile: Profile) -> None:
        self._curves = {_key(curve): Curve(curve.points) for curve in profile.collectives}
        self._beside = {_key(curve): Beside(curve.beside) for curve in profile.collectives if curve.beside}
        self._known: dict[Collective, tuple[tuple[Lowered, ...], tuple[Timed | None, ...]]] = {}
        self._unit_s: dict[Template, float] = {}  # busiest link of a uniform all_to_all of 1 byte
        self._firsts_s: dict[tuple[CurveKey, Template], float] = {}

    @property
    def curves(self) -> tuple[CurveKey, ...]:
        """What was measured."""
        return tuple(self._curves)

    @property
    def beside_work(self) -> bool:
        """Whether collectives were measured beside work as well."""
        return bool(self._beside)

    def lower(self, cluster: Cluster, collective: Collective) -> tuple[Lowered, ...]:
        """Return what each group puts on the links, with measured times where the profile has them."""
        return self._lowered(cluster, collective)[0]

    def times(self, cluster: Cluster, collective: Collective) -> tuple[Timed | None, ...]:
        """Return each group's place on a curve, in order; None where its shape was not measured."""
        return self._lowered(cluster, collective)[1]

    def _lowered(
        self, cluster: Cluster, collective: Collective
    ) -> tuple[tuple[Lowered, ...], tuple[Timed | None, ...]]:
        if collective not in self._known:
            modelled = tuple(lower(cluster, collective))
            keys = self.keys(cluster, collective)
            times = tuple(
                self._timed(cluster, collective, group, key, modelled[group]) for group, key in enumerate(keys)
            )
            busiest = _together(cluster, modelled, times)
            whole = tuple(
                one if timed is None else _measured(cluster, one, timed, busiest.get(timed.key))
                for one, timed in zip(modelled, times, strict=True)
            )
            self._known[collective] = whole, times
        return self._known[collective]

    def keys(self, cluster: Cluster, collective: Collective) -> list[CurveKey | None]:
        """Return what each group would have to be measured for, in order; None for a group of one rank."""
        shapes = [_shape(cluster, ranks) for ranks in collective.groups.members]
        at_once = Counter(shape for shape in shapes if sum(shape) > 1)
        in_node: dict[Shape, Counter[int]] = defaultdict(Counter)
        for shape, ranks in zip(shapes, collective.groups.members, strict=True):
            in_node[shape].update(np.unique(cluster.node_of[ranks]).tolist())
        keys = {
            shape: CurveKey(collective.kind, shape, groups, max(in_node[shape].values()))
            for shape, groups in at_once.items()
        }
        return [keys.get(shape) for shape in shapes]

    def _timed(
        self, cluster: Cluster, collective: Collective, group: int, key: CurveKey | None, modelled: Lowered
    ) -> Timed | None:
        if key is None:
            return None
        if key not in self._curves:
            key = CurveKey(key.kind, key.ranks_per_node)
        curve = self._curves.get(key)
        if curve is None:
            return None
        nbytes = self._size(cluster, collective, group, modelled)
        seconds = curve.seconds(nbytes) if nbytes > 0 else curve.latency_s
        latency_s = curve.latency_s
        if curve.range_bytes[0] > _LATENCY_BYTES:
            latency_s = sum(phase.latency_s for phase in modelled.phases)
            if nbytes < curve.range_bytes[0]:
                ranks = collective.groups.members[group]
                seconds *= min(1.0, alone_s(cluster, modelled) / self._first_s(cluster, key, ranks))
        return Timed(key, curve, nbytes, seconds, latency_s, self._beside.get(key))

    def _first_s(self, cluster: Cluster, key: CurveKey, ranks: IntArray) -> float:
        """What the model says of the first point of a curve, for a group of its shape."""
        place = key, template_of(cluster, ranks)
        if place not in self._firsts_s:
            first = uniform_collective(key.kind, ranks.tolist(), self._curves[key].range_bytes[0])
            (modelled,) = lower(cluster, first)
            self._firsts_s[place] = alone_s(cluster, modelled)
        return self._firsts_s[place]

    def _size(self, cluster: Cluster, collective: Collective, group: int, modelled: Lowered) -> float:
        """The size at which the curve is read, in nccl-tests' definition."""
        if collective.kind != "all_to_all":
            return collective.nbytes_of(group)
        ranks = collective.groups.members[group]
        template = template_of(cluster, ranks)
        if template not in self._unit_s:
            (uniform,) = lower(cluster, uniform_collective("all_to_all", ranks.tolist(), 1.0))
            self._unit_s[template] = uniform.bound_s
        return modelled.bound_s / self._unit_s[template]


def _key(curve: CollectiveCurve) -> CurveKey:
    return CurveKey(curve.kind, curve.ranks_per_node, curve.groups, curve.groups_per_node)


def _shape(cluster: Cluster, ranks: IntArray) -> Shape:
    _, counts = np.unique(cluster.node_of[ranks], return_counts=True)
    return tuple(sorted(counts.tolist(), reverse=True))


def _together(cluster: Cluster, modelled: Sequence[Lowered], times: Sequence[Timed | None]) -> dict[CurveKey, float]:
    """Seconds on the busiest link of all groups that a curve of several groups holds, at what links carry."""
    loads: dict[CurveKey, FloatArray] = {}
    for one, timed in zip(modelled, times, strict=True):
        if timed is not None and timed.key.groups > 1:
            total = loads.setdefault(timed.key, np.zeros(len(cluster.link_usable)))
            for phase in one.phases:
                np.add.at(total, phase.links, phase.nbytes)
    return {
        key: float((total[total > 0] / cluster.link_usable[total > 0]).max(initial=0.0)) for key, total in loads.items()
    }


def _measured(cluster: Cluster, modelled: Lowered, timed: Timed, together_s: float | None) -> Lowered:
    """The group's bytes in the measured time; `together_s` is what all groups keep the busiest link, None if alone."""
    # Beside work its latency is slowed as well, which the engine does to transfers only.
    waits = min(timed.latency_s, timed.seconds) if timed.beside is None else 0.0
    transfer_s = timed.seconds - waits
    links, nbytes = _bytes(modelled.phases)
    stated_s = together_s if together_s is not None else float((nbytes / cluster.link_usable[links]).max(initial=0.0))
    if transfer_s <= 0:
        links, nbytes = links[:0], nbytes[:0]
    phase = Phase(waits, links, nbytes, transfer_s, min(1.0, transfer_s / stated_s) if stated_s > 0 else 1.0)
    beside, slows = timed.slowed
    return replace(
        modelled, algorithm="measured", phases=(phase,), bound_s=min(modelled.bound_s, timed.seconds), beside=beside,
        slows=slows,
    )  # fmt: skip


def _bytes(phases: Sequence[Phase]) -> tuple[IntArray, FloatArray]:
    """Bytes of all phases together, by link."""
    every = np.concatenate([np.zeros(0, dtype=np.int64), *(phase.links for phase in phases)])
    links, place = np.unique(every, return_inverse=True)
    moved = np.concatenate([np.zeros(0), *(phase.nbytes for phase in phases)])
    return links, np.bincount(place, moved, len(links)).astype(np.float64)

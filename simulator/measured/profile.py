"""A profile: what was measured of a machine's collectives and of the work of a rank, with where it comes from.

Everything is in base units: bytes, elements, seconds. A profile may hold some parts only: collectives of a machine
without its work, or the other way round; what it does not hold is modelled as without a profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from foreshard.simulator.job.program import CollectiveKind
from foreshard.simulator.job.scenario import Constant
from foreshard.simulator.job.work import WorkKind

__all__ = [
    "QUANTILES",
    "BesidePoint",
    "CollectiveCurve",
    "Noise",
    "PairCurve",
    "Point",
    "Profile",
    "Provenance",
    "SizePoint",
    "WorkFit",
    "WorkPoint",
]

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Probabilities at which a spread is kept: natural logarithms of measured over predicted, one for each."""

Seconds = Annotated[float, Gt(0)]
Count = Annotated[int, Ge(0)]
Spread = tuple[float, ...]  # logarithms at QUANTILES; empty where nothing is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """One command that measured: when (ISO 8601, UTC), with what, on what; `versions` by name of the software."""

    name: str
    created: str
    command: str
    hardware: str
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Seconds of `runs` repetitions: median, 10 % and 90 % quantile, and the mean, 0 where that is not known.

    `outliers` of the runs lie so far off that they count for nothing else (the writer says in a note how far).
    """

    median_s: Seconds
    low_s: Seconds
    high_s: Seconds
    mean_s: Annotated[float, Ge(0)] = 0.0
    runs: Annotated[int, Ge(1)] = 1
    outliers: Count = 0

    @property
    def expected_s(self) -> float:
        """What a run adds to a sum of many: the mean, or the median where that is all there is."""
        return self.mean_s or self.median_s


@dataclass(frozen=True, kw_only=True, slots=True)
class SizePoint(Point):
    """What a collective or a transfer of `nbytes` takes, in nccl-tests' definition of size."""

    nbytes: Annotated[float, Gt(0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class BesidePoint(SizePoint):
    """What a collective takes while all ranks compute, and how many times as long their work takes beside it."""

    slows: Annotated[float, Ge(1)] = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkPoint(Point):
    """What one operation takes whose features are `counts`, in the order of its fit's features."""

    counts: tuple[Annotated[float, Ge(0)], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCurve:
    """Seconds of a collective over its size, from the last member's start to the last member's end.

    `ranks_per_node`: how many ranks of a group lie in each node, the largest first, as (2, 2). `groups` of this shape
    ran at once, at most `groups_per_node` of them with ranks in the same node. Sizes are those of nccl-tests (see
    job.program.Collective); an all_to_all's is the whole send buffer of a rank, all parts equal, its own included.
    `points` are in order of size, and so are those of `beside`, measured while all ranks computed; empty where ranks do
    not share cores with what carries their collectives.
    """

    kind: CollectiveKind
    ranks_per_node: tuple[Annotated[int, Ge(1)], ...]
    groups: Annotated[int, Ge(1)] = 1
    groups_per_node: Annotated[int, Ge(1)] = 1
    points: tuple[SizePoint, ...]
    beside: tuple[BesidePoint, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PairCurve:
    """Seconds of one send and receive between two ranks, by where they lie; half of a ping-pong.

    `latency_s` and `bytes_per_s` are fitted to the points.
    """

    where: Literal["same_node", "other_node"]
    ranks: tuple[Count, Count]
    points: tuple[SizePoint, ...]
    latency_s: Seconds
    bytes_per_s: Annotated[float, Gt(0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFit:
    """Seconds of one kind of work: sum of coefficient times feature, none negative.

    `features` are some of job.work.FEATURES[kind], `coefficients` in seconds each. `residuals` are the logarithms of
    measured over fitted, at QUANTILES; `points` what was measured.
    """

    kind: WorkKind
    features: tuple[str, ...]
    coefficients: tuple[Annotated[float, Ge(0)], ...]
    residuals: Spread
    points: tuple[WorkPoint, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """How a run as a whole differs from the next one: logarithms of one run's median over the usual, at QUANTILES.

    `compute` moves all work of a run together, `collectives` all its collectives; empty where nothing is known.
    """

    compute: Spread = ()
    collectives: Spread = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Everything measured of one machine.

    `backend` carried the collectives; `device` did the work, `device_name` as its library names it. `ranks_per_node`
    of the whole world were active while it was measured. `constants` take the place of shipped ones where a prediction
    needs the model: collectives of shapes that were not measured, work of kinds that are missing.
    """

    name: str
    provenance: tuple[Provenance, ...]
    backend: Literal["nccl", "gloo"]
    device: Literal["cpu", "cuda"]
    device_name: str
    ranks_per_node: tuple[Annotated[int, Ge(1)], ...]
    collectives: tuple[CollectiveCurve, ...] = ()
    pairs: tuple[PairCurve, ...] = ()
    work: tuple[WorkFit, ...] = ()
    noise: Noise = field(default_factory=Noise)
    constants: tuple[Constant, ...] = ()

"""What a prediction took from its profile, what it had to model, and what lies outside of what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from foreshard.simulator.comms.measured_times import CurveKey, Timed
from foreshard.simulator.job.program import Collective, Compute, Stage, StepProgram
from foreshard.simulator.job.work import WorkKind
from foreshard.simulator.measured.fits import above_range
from foreshard.simulator.measured.profile import Profile, Provenance
from foreshard.simulator.results.exposure import breakdown, slowest_rank
from foreshard.simulator.step.intervals import interval_of
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.units import format_bytes

__all__ = ["CurveUse", "ProfileUse", "WorkUse", "profile_use", "stage_intervals"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveUse:
    """The collectives of one kind and shape: between which sizes in bytes, and whether a curve was measured for them.

    `curve` names the curve, "" where the model had to do; `below` and `above` are how far the sizes leave its
    `measured_bytes`, as factors above 1, or 1.
    """

    collective: str
    operations: tuple[str, ...]
    nbytes: tuple[float, float]
    curve: str = ""
    measured_bytes: tuple[float, float] | None = None
    below: float = 1.0
    above: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkUse:
    """Work of one kind: whether it was measured, and by feature how far it goes beyond that, as factors above 1."""

    kind: WorkKind
    measured: bool
    above: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileUse:
    """What a prediction took from a profile, and where that is from; `notes` are what a reader must know besides."""

    name: str
    provenance: tuple[Provenance, ...]
    backend: str
    device_name: str
    ranks_per_node: tuple[int, ...]
    collectives: tuple[CurveUse, ...]
    work: tuple[WorkUse, ...]
    draws: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values in bytes and seconds."""
        origins = [{**asdict(origin), "versions": dict(origin.versions)} for origin in self.provenance]
        return {**asdict(self), "provenance": origins}

    @property
    def modelled(self) -> tuple[str, ...]:
        """What was not measured, in words."""
        shapes = tuple(use.collective for use in self.collectives if not use.curve)
        return shapes + tuple(use.kind for use in self.work if not use.measured)

    def above(self) -> Iterator[str]:
        """One sentence for everything that goes beyond what was measured, where it was extrapolated."""
        for use in self.collectives:
            if use.above > 1.0 and use.measured_bytes is not None:
                asked, most = format_bytes(use.nbytes[1]), format_bytes(use.measured_bytes[1])
                outside = f"outside the measured range, up to {most}, by a factor of {use.above:.2g}"
                yield f"{use.collective} at {asked}: {outside}"
        for work in self.work:
            for feature, factor in work.above.items():
                yield f"{work.kind}: {feature} outside the measured range by a factor of {factor:.2g}"

    def below(self) -> Iterator[str]:
        """One sentence for every collective smaller than what was measured, which takes the time of the smallest."""
        for use in self.collectives:
            if use.below > 1.0 and use.measured_bytes is not None:
                asked, least = format_bytes(use.nbytes[0]), format_bytes(use.measured_bytes[0])
                outside = f"outside the measured range, from {least}, by a factor of {use.below:.2g}: taken as latency"
                yield f"{use.collective} at {asked}: {outside}"


def profile_use(source: Prediction) -> ProfileUse | None:
    """Return what a prediction took from its profile; None without one."""
    profile = source.profile
    if profile is None:
        return None
    program = source.program(source.shown_sync)
    return ProfileUse(
        name=profile.name,
        provenance=profile.provenance,
        backend=profile.backend,
        device_name=profile.device_name,
        ranks_per_node=profile.ranks_per_node,
        collectives=tuple(_curve_uses(source, program)),
        work=tuple(_work_uses(profile, program)),
        draws=len(source.drawn),
        notes=tuple(_notes(source, profile)),
    )


def _curve_uses(source: Prediction, program: StepProgram) -> Iterator[CurveUse]:
    """One entry for each kind and shape, in the order in which they first occur."""
    found: dict[CurveKey, list[tuple[str, Timed | None, float]]] = {}
    assert source.measured is not None
    for op in program.ops:
        if isinstance(op.work, Collective):
            keys = source.measured.keys(source.cluster, op.work)
            times = source.measured.times(source.cluster, op.work)
            for group, (key, timed) in enumerate(zip(keys, times, strict=True)):
                if key is not None:
                    size = timed.nbytes if timed is not None else _stated(op.work, group)
                    found.setdefault(key, []).append((op.name, timed, size))
    for key, uses in found.items():
        names, times, sizes = zip(*uses, strict=True)
        timed = times[0]
        yield CurveUse(
            collective=key.words,
            operations=tuple(dict.fromkeys(names)),
            nbytes=(min(sizes), max(sizes)),
            curve="" if timed is None else timed.key.words,
            measured_bytes=None if timed is None else timed.curve.range_bytes,
            below=max(one.below if one is not None else 1.0 for one in times),
            above=max(one.above if one is not None else 1.0 for one in times),
        )


def _stated(collective: Collective, group: int) -> float:
    """The size of a collective without a curve: of an all_to_all the largest send buffer."""
    if collective.kind != "all_to_all":
        return collective.nbytes_of(group)
    pairs = collective.traffic_of(group)
    return float((pairs.bytes_out() + pairs.diagonal()).max())


def _work_uses(profile: Profile, program: StepProgram) -> Iterator[WorkUse]:
    """One entry for each kind of work, in the order in which they first occur."""
    fits = {fit.kind: fit for fit in profile.work}
    above: dict[WorkKind, dict[str, float]] = {}
    for op in program.ops:
        for work in op.work.works if isinstance(op.work, Compute) else ():
            worst = above.setdefault(work.kind, {})
            for feature, factor in above_range(fits[work.kind], work.counts).items() if work.kind in fits else ():
                worst[feature] = max(factor, worst.get(feature, 1.0))
    for kind, factors in above.items():
        yield WorkUse(kind=kind, measured=kind in fits, above=factors)


def _notes(source: Prediction, profile: Profile) -> Iterator[str]:
    cluster = source.cluster
    here = np.bincount(cluster.node_of, minlength=cluster.nodes).tolist()
    if profile.device == "cpu" and profile.work and max(profile.ranks_per_node) != max(here):
        yield (
            f"work was measured with {max(profile.ranks_per_node)} ranks at a time in a node, but {max(here)} share "
            "its cores here: it may take another time"
        )
    if profile.device == "cpu" and sum(profile.ranks_per_node) != cluster.size:
        yield f"it was measured with {sum(profile.ranks_per_node)} ranks in all, and {cluster.size} run here"


def stage_intervals(source: Prediction) -> dict[Stage, tuple[float, float]]:
    """Return the 80 % interval of the seconds that each stage takes on the slowest rank; empty without draws."""
    parts = [breakdown(step.trace, slowest_rank(step.trace)) for step in source.drawn]
    if not parts:
        return {}
    return {stage: interval_of([part.stages[stage].time_s for part in parts]) for stage in parts[0].stages}

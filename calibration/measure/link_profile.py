"""Measured links as part of a profile: curves of collectives, pairs of ranks, gloo's constants, where it is from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from foreshard.calibration.measure.link_fit import fit_alpha_beta
from foreshard.calibration.measure.link_model import gloo_constants
from foreshard.calibration.measure.link_records import LinkRecord, Settings
from foreshard.calibration.measure.machine import profile_of
from foreshard.calibration.measure.samples import OUTLIER_RULE, point_of
from foreshard.simulator.measured.profile import BesidePoint, CollectiveCurve, PairCurve, Profile, SizePoint

__all__ = ["link_profile"]

_LINKS = "links"  # name of what measured, in the provenance of a profile


def link_profile(settings: Settings, records: Sequence[LinkRecord], *, name: str, command: str) -> Profile:
    """Return what was measured of links as a profile; uneven patterns are left out, they only check."""
    even = [record for record in records if record.kind != "send_recv" and not record.pattern]
    pairs = [record for record in records if record.kind == "send_recv"]
    profile = profile_of(
        settings,
        _LINKS,
        name=name,
        command=command,
        how="ranks pinned" * settings.pinned,
        notes=(f"all {len(settings.node_of)} ranks active", OUTLIER_RULE),
        collectives=tuple(_curve(curve) for curve in _curves(even)),
        pairs=tuple(_pair(curve) for curve in _curves(pairs)),
    )
    fitted = f"fitted to collectives of up to 16 KiB, {profile.provenance[0].created}"
    return replace(profile, constants=gloo_constants(settings, records, fitted))


def _curves(records: Iterable[LinkRecord]) -> list[list[LinkRecord]]:
    """Records that differ in size only, in order of size."""
    found: dict[tuple[object, ...], list[LinkRecord]] = {}
    for record in records:
        key = record.kind, record.ranks_per_node, record.groups, record.groups_per_node, record.ranks
        found.setdefault(key, []).append(record)
    return [sorted(curve, key=lambda record: record.nbytes) for curve in found.values()]


def _points(records: Sequence[LinkRecord]) -> tuple[SizePoint, ...]:
    points = [(record.nbytes, point_of(record.times_s)) for record in records]
    return tuple(SizePoint(nbytes=nbytes, **asdict(point)) for nbytes, point in points)


def _curve(records: Sequence[LinkRecord]) -> CollectiveCurve:
    first = records[0]
    assert first.kind != "send_recv"
    beside = [record.beside for record in records if record.beside is not None]
    # How work suffers hardly depends on the size: all sizes together tell it best.
    worked_s, alone_s = sum(one.worked_s for one in beside), sum(one.alone_s for one in beside)
    slows = max(1.0, worked_s / alone_s) if beside else 1.0
    return CollectiveCurve(
        kind=first.kind,
        ranks_per_node=first.ranks_per_node,
        groups=first.groups,
        groups_per_node=first.groups_per_node,
        points=_points(records),
        beside=tuple(
            BesidePoint(nbytes=record.nbytes, slows=slows, **asdict(point_of(record.beside.times_s)))
            for record in records
            if record.beside is not None
        ),
    )


def _pair(records: Sequence[LinkRecord]) -> PairCurve:
    first, points = records[0], _points(records)
    fit = fit_alpha_beta(points)
    return PairCurve(
        where="same_node" if len(first.ranks_per_node) == 1 else "other_node",
        ranks=(first.ranks[0], first.ranks[1]),
        points=points,
        latency_s=fit.latency_s,
        bytes_per_s=fit.bytes_per_s,
    )

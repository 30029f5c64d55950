"""Measured links as people read them: tables as nccl-tests prints them, fits with residuals, what the model says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp
from typing import Any

import numpy as np
from tabulate import tabulate

from foreshard.calibration.measure.link_fit import fit_alpha_beta
from foreshard.calibration.measure.link_model import modelled_wire, predicted_uneven_s
from foreshard.calibration.measure.link_records import LinkRecord, Settings, Wire
from foreshard.calibration.measure.samples import point_of
from foreshard.simulator.comms.measured_times import shape_words
from foreshard.simulator.comms.single import bus_factor
from foreshard.simulator.measured.profile import CollectiveCurve, PairCurve, Profile, SizePoint

__all__ = ["link_rows", "link_text"]

_WIRE_TOLERANCE = 0.02  # headers, control messages, acknowledgements


Curve = CollectiveCurve | PairCurve


def link_rows(profile: Profile) -> list[dict[str, Any]]:
    """Return every point in bytes, seconds and bytes/s."""
    return [
        {
            "kind": "send_recv" if isinstance(curve, PairCurve) else curve.kind,
            "what": _title(curve),
            "bytes": point.nbytes,
            "time_s": point.median_s,
            "low_s": point.low_s,
            "high_s": point.high_s,
            "runs": point.runs,
            "outliers": point.outliers,
            "algbw_bytes_per_s": point.nbytes / point.median_s,
            "busbw_bytes_per_s": point.nbytes / point.median_s * _bus(curve),
        }
        for curve in _curves(profile)
        for point in curve.points
    ]


def link_text(settings: Settings, records: Sequence[LinkRecord], profile: Profile, seed: int) -> str:
    """Return all tables: one a curve, the fits, bytes on interfaces beside the model's, uneven all_to_alls."""
    curves = _curves(profile)
    uneven = [record for record in records if record.pattern]
    parts = [*map(_curve_table, curves), _fit_table(curves), _beside_table(profile.collectives)]
    parts += [_wire_table(settings, [record for record in records if record.wire is not None])]
    parts += [_uneven_table(settings, uneven, profile, seed)] if uneven else []
    parts += ["\n".join(f"{it.name} = {it.value * 1e6:.1f} us, {it.source}" for it in profile.constants)]
    return "\n\n".join(filter(None, parts))


def _curves(profile: Profile) -> list[Curve]:
    return [*profile.collectives, *profile.pairs]


def _title(curve: Curve) -> str:
    if isinstance(curve, PairCurve):
        return f"send and receive, ranks {curve.ranks[0]} and {curve.ranks[1]} of {curve.where.replace('_', ' ')}"
    at_once = f", {curve.groups} groups at once" if curve.groups > 1 else ""
    return f"{curve.kind}, {shape_words(curve.ranks_per_node)} ranks{at_once}"


def _bus(curve: Curve) -> float:
    return 1.0 if isinstance(curve, PairCurve) else bus_factor(curve.kind, sum(curve.ranks_per_node))


def _curve_table(curve: Curve) -> str:
    body = [_cells(point, _bus(curve)) for point in curve.points]
    header = ["size (B)", "time (us)", "10 %", "90 %", "runs", "outliers", "algbw (GB/s)", "busbw (GB/s)"]
    table = tabulate(body, headers=header, disable_numparse=True, stralign="right")
    return f"{_title(curve)}\n{table}"


def _cells(point: SizePoint, bus: float) -> list[str]:
    algbw = point.nbytes / point.median_s / 1e9
    times = (f"{seconds * 1e6:.1f}" for seconds in (point.median_s, point.low_s, point.high_s))
    return [f"{point.nbytes:.0f}", *times, str(point.runs), str(point.outliers), f"{algbw:.4f}", f"{algbw * bus:.4f}"]


def _fit_table(curves: Sequence[Curve]) -> str:
    header = ["latency + bytes / rate", "latency (us)", "rate as busbw (GB/s)", "off by 10 %", "90 %", "worst"]
    body = [_fit_cells(curve) for curve in curves if len(curve.points) > 2]
    return str(tabulate(body, headers=header, disable_numparse=True)) if body else ""


def _fit_cells(curve: Curve) -> list[str]:
    fit = fit_alpha_beta(curve.points)
    low, high = np.quantile(fit.residuals, [0.1, 0.9]).tolist()
    worst = max(fit.residuals, key=abs)
    rate = fit.bytes_per_s * _bus(curve) / 1e9
    off = (f"{exp(value) - 1:+.1%}" for value in (low, high, worst))
    return [_title(curve), f"{fit.latency_s * 1e6:.1f}", f"{rate:.4f}", *off]


def _beside_table(curves: Sequence[CollectiveCurve]) -> str:
    """How collectives and work of all ranks slow each other down, where they share cores."""
    header = ["beside work of all ranks", "size (B)", "time (us)", "alone", "times as long", "work takes times as long"]
    body = [
        [
            _title(curve), f"{beside.nbytes:.0f}", f"{beside.expected_s * 1e6:.1f}", f"{alone.expected_s * 1e6:.1f}",
            f"{beside.expected_s / alone.expected_s:.1f}", f"{beside.slows:.2f}",
        ]
        for curve in curves
        for alone in curve.points
        for beside in curve.beside
        if alone.nbytes == beside.nbytes
    ]  # fmt: skip
    return tabulate(body, headers=header, disable_numparse=True) if body else ""


def _wire_table(settings: Settings, counted: Sequence[LinkRecord]) -> str:
    """What the busiest node sent, received and looped over the size, counted and as the model has it."""
    header = ["bytes on interfaces over the size", "sent", "model", "received", "model", "looped", "model", ""]
    body = []
    for record in counted:
        assert record.wire is not None
        measured, model = (_busiest(wire, record.nbytes) for wire in (record.wire, modelled_wire(settings, record)))
        pairs = [f"{value:.3f}" for both in zip(measured, model, strict=True) for value in both]
        alike = np.allclose(measured, model, rtol=_WIRE_TOLERANCE, atol=_WIRE_TOLERANCE)
        body.append([_record_title(record), *pairs, "" if alike else "the model moves other bytes"])
    return tabulate(body, headers=header, disable_numparse=True) if body else ""


def _busiest(wire: Wire, nbytes: int) -> tuple[float, float, float]:
    return max(wire.sent) / nbytes, max(wire.received) / nbytes, max(wire.looped) / nbytes


def _record_title(record: LinkRecord) -> str:
    at_once = f", {record.groups} groups at once" if record.groups > 1 else ""
    return f"{record.kind}, {shape_words(record.ranks_per_node)} ranks{at_once}"


def _uneven_table(settings: Settings, uneven: Sequence[LinkRecord], profile: Profile, seed: int) -> str:
    header = ["uneven, in no fit", "pattern", "size (B)", "time (us)", "from the even ones", "error"]
    return str(tabulate([*_uneven_rows(settings, uneven, profile, seed)], headers=header, disable_numparse=True))


def _uneven_rows(settings: Settings, uneven: Sequence[LinkRecord], profile: Profile, seed: int) -> Iterator[list[str]]:
    for record in uneven:
        measured = point_of(record.times_s).expected_s
        predicted = predicted_uneven_s(settings, record, profile, seed)
        said = ["", ""] if predicted is None else [f"{predicted * 1e6:.1f}", f"{predicted / measured - 1:+.1%}"]
        yield [_record_title(record), record.pattern, str(record.nbytes), f"{measured * 1e6:.1f}", *said]

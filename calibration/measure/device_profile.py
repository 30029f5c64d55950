"""Measured work as part of a profile: a fit for each kind of work, its points, where it is from; and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1

from tabulate import tabulate

from foreshard.calibration.measure.device_records import DeviceSettings, WorkRecord
from foreshard.calibration.measure.machine import profile_of
from foreshard.calibration.measure.samples import OUTLIER_RULE
from foreshard.calibration.measure.work_fit import fit_work
from foreshard.simulator.measured.profile import Profile, WorkFit

__all__ = ["device_profile", "work_text"]

_DEVICE = "device"  # name of what measured, in the provenance of a profile


def device_profile(settings: DeviceSettings, records: Sequence[WorkRecord], *, name: str, command: str) -> Profile:
    """Return what was measured of the work of ranks as a profile."""
    jobs = len({record.job for record in records})
    drawn = (
        f"every operation of {jobs} drawn jobs of {settings.optimizer}, all {len(settings.node_of)} ranks active, "
        "each a sharding group of its own"
    )
    return profile_of(
        settings, _DEVICE, name=name, command=command, notes=(drawn, OUTLIER_RULE), work=fit_work(records)
    )


def work_text(fits: Sequence[WorkFit]) -> str:
    """The fits as a table: points, seconds by feature, and how far measured lies from fitted, 10 to 90 %."""
    rows = [
        [
            fit.kind,
            len(fit.points),
            sum(point.outliers for point in fit.points),
            f"{expm1(fit.residuals[1]):+.1%} to {expm1(fit.residuals[-2]):+.1%}",
            ", ".join(f"{slope:.3g} s/{name}" for name, slope in zip(fit.features, fit.coefficients, strict=True)),
        ]
        for fit in fits
    ]
    headers = ["work", "points", "outliers", "measured / fitted - 1", "seconds"]
    return str(tabulate(rows, headers=headers, disable_numparse=True))

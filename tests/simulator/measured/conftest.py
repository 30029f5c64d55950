"""Profiles with exact numbers, for predictions that can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from foreshard.simulator.job.program import CollectiveKind
from foreshard.simulator.measured.profile import CollectiveCurve, Profile, Provenance, SizePoint, WorkFit

Curves = Callable[..., CollectiveCurve]
Profiles = Callable[..., Profile]


def _curve(
    kind: CollectiveKind, shape: Sequence[int], times: dict[float, float], *, spread: float = 1.0, **more: Any
) -> CollectiveCurve:
    """Seconds by size; runs lie between time / spread and time x spread."""
    points = tuple(
        SizePoint(nbytes=nbytes, median_s=time, low_s=time / spread, high_s=time * spread, runs=9)
        for nbytes, time in times.items()
    )
    return CollectiveCurve(kind=kind, ranks_per_node=tuple(shape), points=points, **more)


def _profile(*curves: CollectiveCurve, work: Sequence[WorkFit] = (), **more: Any) -> Profile:
    origin = Provenance(name="links", created="2025-01-02T03:04:05Z", command="foreshard calibrate", hardware="a host")
    usual: dict[str, Any] = {"backend": "gloo", "device": "cpu", "device_name": "a core", "ranks_per_node": (4,)}
    return Profile(name="here", provenance=(origin,), collectives=curves, work=tuple(work), **{**usual, **more})


@pytest.fixture
def curve() -> Curves:
    return _curve


@pytest.fixture
def profile_of() -> Profiles:
    return _profile

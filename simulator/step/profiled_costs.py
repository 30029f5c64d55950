"""Costs of work as a profile measured them, in place of the model's where it did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.program import HostCopy
from foreshard.simulator.job.work import Work, WorkKind
from foreshard.simulator.measured.fits import fitted_seconds
from foreshard.simulator.measured.profile import WorkFit
from foreshard.simulator.step.costs import CostModel
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import Sourced

__all__ = ["ProfiledCosts"]

FloatArray = NDArray[np.float64]


class ProfiledCosts(CostModel):
    """Seconds of a profile's fits for the kinds of work that it has, the model's for the others.

    On CPUs what was measured holds the calls of its operators, so the host needs no time beside it.
    """

    def __init__(self, cluster: Cluster, constants: Mapping[str, Sourced], fits: Iterable[WorkFit]) -> None:
        super().__init__(cluster, constants)
        self._fits: dict[WorkKind, WorkFit] = {fit.kind: fit for fit in fits}

    def work(self, kind: WorkKind, counts: Mapping[str, FloatArray | float], modelled_s: FloatArray) -> Work:
        """Return the work of one kind with its features, [ranks], and what the fit says it takes, else the model."""
        modelled = super().work(kind, counts, modelled_s)
        fit = self._fits.get(kind)
        return modelled if fit is None else replace(modelled, seconds=fitted_seconds(fit, modelled.counts))

    def launching(self, launches: float, works: Iterable[Work]) -> float:
        """Host seconds to issue works as `launches` kernels; none where the measured work holds them."""
        held = self._cluster.on_cpu and all(work.kind in self._fits for work in works)
        return 0.0 if held else super().launching(launches, works)

    def issue(self) -> float:
        """Host seconds to launch one collective."""
        fit = self._fits.get("issue")
        return super().issue() if fit is None else float(fitted_seconds(fit, {"calls": np.ones(1)})[0])

    def copies_in(self, nbytes: FloatArray) -> tuple[HostCopy, ...]:
        """What `copy_in` puts on the host's links; nothing where the measured work holds it."""
        return () if "copy_in" in self._fits else super().copies_in(nbytes)

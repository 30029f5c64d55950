"""Whether what a run holds fits this machine's memory, before anything is built."""

from __future__ import annotations

import os

import numpy as np

from foreshard.simulator.results.report import memory_of
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_bytes

__all__ = ["check_memory"]

_SHARE = 0.8  # of what is free; the rest is for the libraries and the system


def check_memory(prediction: Prediction, ranks_here: int, *, on_cpu: bool) -> None:
    """Raise InputError if the ranks of this host need more memory than is free. GPUs tell by themselves."""
    if not on_cpu:
        return
    needed = float(np.max(memory_of(prediction).per_rank_bytes)) * ranks_here
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > _SHARE * free:
        raise InputError(
            f"{ranks_here} ranks need about {format_bytes(needed)} here, but {format_bytes(free)} are free: "
            "lower workload.batch_size, or cut the tables with --shrink-tables ROWS"
        )

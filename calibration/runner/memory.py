"""Whether what a run holds fits this machine's memory, before anything is built."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from foreshard.calibration.runner.settings import RunSettings
from foreshard.simulator.job.workload import Workload
from foreshard.simulator.results.report import memory_of
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.errors import InputError
from foreshard.topologies.units import format_bytes

__all__ = ["available_bytes", "check_memory"]

_ID_BYTES, _VALUE_BYTES = 8, 4  # int64 and float32
_SHARE = 0.8  # of what is available; the rest is for the libraries and the system
_LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def check_memory(prediction: Prediction, ranks_here: int, *, free_bytes: float | None = None) -> None:
    """Raise InputError if ranks on this host's CPUs need more memory than is available; tables are the bulk of it.

    `free_bytes` None asks the system. Where it does not tell, nothing is refused. Ids are drawn only if there is room.
    """
    free = available_bytes() if free_bytes is None else free_bytes
    if free is None:
        return
    _check_batch(prediction.scenario.workload, ranks_here, free)
    needed = float(np.max(memory_of(prediction).per_rank_bytes)) * ranks_here
    if needed <= _SHARE * free:
        return
    rows = max(table.num_embeddings for table in prediction.scenario.workload.tables)
    fitting = max(1, int(rows * _SHARE * free / needed))
    raise InputError(
        f"{ranks_here} ranks need about {format_bytes(needed)} of this machine's memory, of which {format_bytes(free)} "
        f"are available: cut the tables, as with --shrink-tables {_round(fitting)}, lower workload.batch_size, or "
        "start fewer ranks"
    )


def _check_batch(workload: Workload, ranks_here: int, free: float) -> None:
    """Raises InputError if the ids of the batches that ranks keep, and vectors with their gradients, are too many."""
    ids = sum(table.ids_per_sample for table in workload.tables)
    columns = sum(
        table.embedding_dim * (table.ids_per_sample if table.pooling == "none" else len(table.features))
        for table in workload.tables
    )
    of_sample = RunSettings().batches * _ID_BYTES * ids + 2 * _VALUE_BYTES * columns
    needed = of_sample * workload.batch_size * ranks_here
    if needed > _SHARE * free:
        fitting = max(1, int(workload.batch_size * _SHARE * free / needed))
        raise InputError(
            f"{ranks_here} ranks need at least {format_bytes(needed)} of this machine's memory for ids and vectors, of "
            f"which {format_bytes(free)} are available: lower workload.batch_size, as to {_round(fitting)}, or start "
            "fewer ranks"
        )


def available_bytes(meminfo: Path = Path("/proc/meminfo"), groups: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Memory that new processes can have, in bytes: the kernel's estimate, or what a container's limit leaves."""
    found = [value for value in (_of_kernel(meminfo), *(_of_group(groups, *names) for names in _LIMITS)) if value]
    return min(found, default=None)


def _of_kernel(meminfo: Path) -> float | None:
    """MemAvailable, which counts caches that would give way (proc_meminfo(5))."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _of_group(groups: Path, limit: str, used: str) -> float | None:
    """What a control group's limit leaves, caches that would give way counted in; None without a limit ("max")."""
    try:
        left = float((groups / limit).read_text(encoding="ascii")) - float((groups / used).read_text(encoding="ascii"))
        stat = dict(line.split() for line in (groups / limit).with_name("memory.stat").read_text("ascii").splitlines())
    except (OSError, ValueError):
        return None
    return left + float(stat.get("total_inactive_file", stat.get("inactive_file", "0")))


def _round(rows: int) -> int:
    """Two figures of it, rounded down."""
    unit = 10 ** max(0, len(str(rows)) - 2)
    return rows // unit * unit

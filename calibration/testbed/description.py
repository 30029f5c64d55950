"""A bed as `foreshard predict` reads it: probed, and written down as a cluster file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w

from foreshard.calibration.testbed.bed import Testbed
from foreshard.calibration.testbed.shape import BedLink, BedShape
from foreshard.topologies.clusterfile import parse_cluster
from foreshard.topologies.errors import UnavailableError
from foreshard.topologies.machine import ClusterSpec

__all__ = ["Probe", "bed_spec", "cluster_text", "probe_bed"]

_PROBE_S = 0.5  # of every link, at its rate
_LOOP_BYTES = 256 << 20
_TIMEOUT_S = 300.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What was measured in a bed while all ranks did the same.

    `flops` in single precision and `memory_bytes_per_s` (read and written) of one rank; B/s into each node over its
    link while it sends as fast, [nodes], None for one node alone; B/s over loopback into a rank that sends as fast;
    seconds of one byte from rank to rank, either way.
    """

    flops: float
    memory_bytes_per_s: float
    link_bytes_per_s: tuple[float, ...] | None
    link_latency_s: float
    loopback_bytes_per_s: float
    loopback_latency_s: float


def probe_bed(bed: Testbed) -> Probe:
    """Measure a bed, in seconds. Raises UnavailableError if its ranks cannot talk."""
    link_bytes = int(bed.link.rate_bytes_per_s * _PROBE_S + 2 * bed.link.burst_bytes)
    sizes = (str(link_bytes), str(_LOOP_BYTES), str(int(2 * bed.link.burst_bytes)))
    command = [sys.executable, "-m", "foreshard.calibration.testbed.probe", *sizes]
    results = bed.run(command, environment=_ONE_THREAD, timeout_s=_TIMEOUT_S, capture=True)
    if failed := [result for result in results if result.exit_code]:
        said = next((result.stderr.strip() for result in failed if result.stderr.strip()), "without a word")
        raise UnavailableError(f"the ranks of the testbed could not talk: {said.splitlines()[-1]}")
    return _probe([json.loads(result.stdout) for result in results])


def _probe(found: Sequence[Mapping[str, Any]]) -> Probe:
    links = [rank["link"] for rank in found if "link" in rank]
    loops = [rank["loopback"] for rank in found if "loopback" in rank]
    return Probe(
        flops=median(rank["flops"] for rank in found),
        memory_bytes_per_s=median(rank["memory_bytes_per_s"] for rank in found),
        link_bytes_per_s=tuple(link["bytes_per_s"] for link in links) or None,
        link_latency_s=median(link["latency_s"] for link in links) if links else 0.0,
        loopback_bytes_per_s=median(loop["bytes_per_s"] for loop in loops),
        loopback_latency_s=median(loop["latency_s"] for loop in loops),
    )


def cluster_text(shape: BedShape, link: BedLink, probe: Probe) -> str:
    """Return a probed bed as a cluster file: the ranks share this machine's cores and memory evenly."""
    day = datetime.now(UTC).date().isoformat()
    source = f"measured in the testbed on {day}, all {shape.world_size} ranks at work"
    runs = [(size, sum(1 for _ in equal)) for size, equal in groupby(shape.ranks_per_node)]
    groups = [{"nodes": nodes, **_node(size, shape.world_size, link, probe, source)} for size, nodes in runs]
    document: dict[str, Any] = {
        "schema": 1,
        "name": f"testbed-{shape}",
        "backend": "gloo",
        "assumptions": [f"nodes are network namespaces of one machine, whose {_cores()} cores all ranks share evenly"],
        **(groups[0] if len(groups) == 1 else {"groups": groups}),
        "fabric": {"kind": "single_switch", "source": "a bridge of the kernel"},
    }
    return tomli_w.dumps(document)


def bed_spec(shape: BedShape, link: BedLink, probe: Probe) -> ClusterSpec:
    """Return a probed bed as the spec that its cluster file resolves to."""
    return parse_cluster(cluster_text(shape, link, probe), where="testbed")


def _node(ranks: int, world: int, link: BedLink, probe: Probe, source: str) -> dict[str, Any]:
    cores = _cores() * ranks / world
    share = min(1.0, cores / ranks)  # what was measured of a rank is its share; the file gives whole cores
    memory, cable = probe.memory_bytes_per_s * ranks, {"latency": "0.1 us", "source": source}
    hop_s, across_s = probe.loopback_latency_s, probe.link_latency_s / 2
    usable = min(link.rate_bytes_per_s, median(probe.link_bytes_per_s or (link.payload_bytes_per_s,)))
    return {
        "cpu": {
            "name": "core",
            "flops": {"fp32": f"{probe.flops / share:.4g} FLOP/s"},
            "memory_bandwidth": _rate(probe.memory_bytes_per_s / share),
            "cache": f"{_cache_bytes()} B",
            "source": source,
        },
        "node": {
            "ranks": ranks,
            "cores": round(cores, 4),
            "memory": {"bandwidth": _rate(memory), "usable": _rate(memory), **cable},
            "host_memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') * ranks // world} B",
            "loopback": _both(probe.loopback_bytes_per_s / share, probe.loopback_bytes_per_s / share, hop_s, source),
            "nic": _both(link.rate_bytes_per_s, usable, across_s, f"tc tbf, burst {link.burst_bytes:.0f} B; {source}"),
            "source": source,
        },
    }


def _both(bandwidth: float, usable: float, latency_s: float, source: str) -> dict[str, str]:
    rates = {"bandwidth": _rate(bandwidth), "usable": _rate(usable)}
    return {**rates, "latency": f"{latency_s * 1e6:.2f} us", "source": source}


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s:.6g} B/s"


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _cache_bytes() -> int:
    """The cache of a core's own, of level 2, as the kernel tells it; 1 MiB where it does not."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with suppress(OSError, ValueError):
            if index.joinpath("level").read_text().strip() == "2":
                return int(index.joinpath("size").read_text().strip().removesuffix("K")) * 1024
    return 1 << 20

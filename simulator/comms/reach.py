"""How far an all-to-all goes beyond what was measured: its peers, and the seconds that rest on a straight line."""

from __future__ import annotations

from foreshard.simulator.comms.machine_constants import machine_constant
from foreshard.topologies.cluster import Cluster

__all__ = ["beyond_measurement", "extrapolated_s"]


def extrapolated_s(cluster: Cluster, peers: int) -> float:
    """Return the seconds that `peers` remote peers cost beyond the measured number of them, 0 up to that number."""
    further = max(0.0, peers - machine_constant(cluster, "all_to_all_measured_peers"))
    return further * machine_constant(cluster, "all_to_all_peer_s")


def beyond_measurement(cluster: Cluster, peers: int) -> str:
    """Return a sentence about an all-to-all with more remote peers than were measured; empty within the measured."""
    extrapolated = extrapolated_s(cluster, peers)
    if not extrapolated:
        return ""
    measured = machine_constant(cluster, "all_to_all_measured_peers")
    return (
        f"{peers:,} remote peers a rank, but what a further one costs was measured for up to {measured:.0f}: the "
        f"{extrapolated * 1e3:.3f} ms for those beyond are a straight line drawn on, and may well be less"
    )

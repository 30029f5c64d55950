"""Bytes on this node's interfaces, as the kernel counts them for the network namespace of this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["NodeBytes", "node_bytes"]

_LOOPBACK = "lo"


class NodeBytes(NamedTuple):
    """Bytes a node has sent and received over its interface, and over its loopback."""

    sent: int
    received: int
    looped: int


def node_bytes() -> NodeBytes | None:
    """Return the counters of the interface that GLOO_SOCKET_IFNAME names; None where nothing of it can be counted.

    Linux counts one header for a train of segments that the interface would cut: the counts exceed the data by less
    than 0.5 % for messages of 64 KiB and more.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME", "")
    try:
        lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    counted = {head.strip(): rest.split() for head, _, rest in (line.partition(":") for line in lines[2:])}
    if name not in counted or _LOOPBACK not in counted:
        return None
    looped = int(counted[_LOOPBACK][8])
    if name == _LOOPBACK:
        return NodeBytes(0, 0, looped)
    return NodeBytes(int(counted[name][8]), int(counted[name][0]), looped)

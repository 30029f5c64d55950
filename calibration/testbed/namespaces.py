"""Network namespaces and what connects them: a bridge in a namespace of its own, one shaped cable to every node.

Every name begins with "foreshard-", the process id of its owner and the moment that process began, so that what a
killed run left behind is told from what another run still uses.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from foreshard.calibration.testbed.shape import MTU, BedLink
from foreshard.topologies.errors import UnavailableError

__all__ = ["INTERFACE", "Counters", "Network", "address_of", "check_machine", "remove_leftovers"]

INTERFACE = "eth0"
"""Name of every node's interface towards the switch, inside its namespace."""

_FOLDERS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_NAME = re.compile(r"foreshard-(?P<pid>\d+)-(?P<began>\d+)-\d+-(?:switch|node\d+)")
_QUEUE_BYTES = 64 * 2**20  # nothing is lost where several nodes send to one: RoCE and InfiniBand are lossless too
_SYSCTLS = {
    # The host's choice must not decide what a link carries. Every kernel has reno; without losses all are alike.
    "tcp_congestion_control": "reno",
    # Neither the time since the last collective nor earlier connections may change how the next one starts.
    "tcp_slow_start_after_idle": "0",
    "tcp_no_metrics_save": "1",
    # One connection may not fill the queue before the shaper: others would wait behind megabytes, on no NIC they do.
    "tcp_limit_output_bytes": "262144",
    "tcp_rmem": "4096 131072 33554432",
    "tcp_wmem": "4096 16384 4194304",
}
_WHY_NOT = (
    ("Specified qdisc kind is unknown", "the kernel has no token bucket filter (sch_tbf)"),
    ("Unknown device type", "the kernel has no virtual Ethernet or no bridge (veth, bridge)"),
    ("Operation not supported", "the kernel cannot do what the testbed needs"),
    ("Operation not permitted", "this process may not change networks (CAP_NET_ADMIN and CAP_SYS_ADMIN are needed)"),
    ("Permission denied", "this process may not change networks (CAP_NET_ADMIN and CAP_SYS_ADMIN are needed)"),
)
_serial = count()


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes a node sent and received since its namespace exists: over its cable, and inside it over loopback.

    The kernel counts one header for a train of segments that the interface would cut, so they exceed the data by less
    than 0.2 % for long messages.
    """

    sent: int
    received: int
    looped: int


def address_of(node: int) -> str:
    """The IP address of a node on the bridge; private to the bed."""
    return f"10.77.0.{node + 1}"


def check_machine() -> None:
    """Raise UnavailableError, in one sentence, if no testbed can be built here."""
    if not sys.platform.startswith("linux"):
        raise UnavailableError(f"a testbed needs the network namespaces of Linux; this is {sys.platform}")
    absent = [name for name in ("ip", "tc") if _tool(name) is None]
    if absent:
        raise UnavailableError(f"a testbed needs {' and '.join(absent)}: install the package iproute2")
    if os.geteuid() != 0:
        raise UnavailableError("a testbed builds network namespaces, which needs root: use sudo or a root shell")


def remove_leftovers() -> tuple[str, ...]:
    """Remove the namespaces of runs that were killed, with the processes in them; returns their names."""
    dead = [name for name in _namespaces() if (found := _NAME.fullmatch(name)) and not _alive(**found.groupdict())]
    for name in dead:
        _remove(name)
    return tuple(dead)


class Network:
    """The namespaces of one bed, `nodes` of them with shaped cables to a switch; `remove` takes everything away."""

    def __init__(self, nodes: int, link: BedLink) -> None:
        base = f"foreshard-{os.getpid()}-{_began(os.getpid())}-{next(_serial)}"
        self.switch = f"{base}-switch"
        self.nodes = tuple(f"{base}-node{node}" for node in range(nodes))
        self._link = link

    def build(self) -> None:
        """Create everything. Raises UnavailableError with what this machine lacks; then some of it may exist."""
        _run("ip", "netns", "add", self.switch)
        _run("ip", "-n", self.switch, "link", "add", "bridge", "mtu", str(MTU), "type", "bridge")
        _run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for node, name in enumerate(self.nodes):
            self._add(node, name)

    def _add(self, node: int, name: str) -> None:
        port = f"port{node}"
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", self.switch)
        for where, interface in ((name, INTERFACE), (self.switch, port)):
            _run("ip", "-n", where, "link", "set", interface, "mtu", str(MTU))
            self._shape(where, interface)
        _run("ip", "-n", name, "addr", "add", f"{address_of(node)}/24", "dev", INTERFACE)
        _run("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
        for interface in ("lo", INTERFACE):
            _run("ip", "-n", name, "link", "set", interface, "up")
        _write_sysctls(name)

    def _shape(self, where: str, interface: str) -> None:
        """A queue shapes what leaves an interface: at the node's end what it sends, at the switch's what it gets."""
        _run(
            "tc", "-n", where, "qdisc", "add", "dev", interface, "root", "tbf",
            "rate", f"{self._link.rate_bytes_per_s * 8:.0f}bit", "burst", f"{self._link.burst_bytes:.0f}",
            "limit", str(_QUEUE_BYTES),
        )  # fmt: skip

    def counters(self) -> tuple[Counters, ...]:
        """Bytes of each node until now."""
        return tuple(_counters(name) for name in self.nodes)

    def remove(self) -> None:
        """End every process in the namespaces and remove them; what is not there is no error."""
        there = set(_namespaces())
        for name in (*self.nodes, self.switch):
            if name in there:
                _remove(name)


def _counters(name: str) -> Counters:
    links = json.loads(_run("ip", "-n", name, "-s", "-j", "link", "show"))
    stats = {link["ifname"]: link["stats64"] for link in links}
    cable, loop = stats[INTERFACE], stats["lo"]
    return Counters(cable["tx"]["bytes"], cable["rx"]["bytes"], loop["tx"]["bytes"])


def _write_sysctls(name: str) -> None:
    """Set how TCP behaves in a namespace; a kernel without a setting keeps its own way."""
    lines = (f"printf %s '{value}' > /proc/sys/net/ipv4/{key}" for key, value in _SYSCTLS.items())
    script = "; ".join(f"{{ {line}; }} 2>/dev/null" for line in lines) + "; true"
    _run("ip", "netns", "exec", name, "/bin/sh", "-c", script)


def _remove(name: str) -> None:
    for _ in range(3):  # a process may start another before it is ended
        pids = _quiet("ip", "netns", "pids", name).split()
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            break
    _quiet("ip", "netns", "delete", name)


def _namespaces() -> Iterator[str]:
    folder = Path("/run/netns")
    return (entry.name for entry in folder.iterdir()) if folder.is_dir() else iter(())


def _began(pid: int) -> int:
    """When a process began, in clock ticks since the machine started; 0 if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def _alive(pid: str, began: str) -> bool:
    return _began(int(pid)) == int(began)


def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_FOLDERS))


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run([_tool(tool) or tool, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip()
        why = next((why for sign, why in _WHY_NOT if sign in said), said or f"it exited with {done.returncode}")
        raise UnavailableError(f"the testbed cannot be built: {why} ({tool} {' '.join(arguments)[:100]})")
    return done.stdout


def _quiet(tool: str, *arguments: str) -> str:
    done = subprocess.run([_tool(tool) or tool, *arguments], capture_output=True, text=True, check=False)
    return done.stdout

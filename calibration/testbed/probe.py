"""What a bed really carries and what a rank has: `python -m foreshard.calibration.testbed.probe`, run as every rank.

All ranks compute, and then copy, at the same time. Then the first rank of each node sends to the next node while it
receives from the one before, so that every link is busy in both directions; then the first two ranks of every node
send to each other inside it, over loopback. Each rank prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from statistics import median
from threading import Thread

import numpy as np

from foreshard.calibration.testbed.namespaces import address_of

__all__: list[str] = []

_PORT = 29600
_PINGS = 200
_PIECE = 1 << 20
_SIDE = 512  # of the float matrices multiplied: 1 MiB each, which fits a core's own cache
_COPY_BYTES = 64 << 20  # from memory, not from a cache
_WORK_S = 0.2
_WAIT_S = 30.0


def _main(link_bytes: int, loop_bytes: int, skipped_bytes: int) -> None:
    rank, world, node, nodes, local, local_size = (
        int(os.environ[name])
        for name in ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    meeting = _Meeting(rank, world)
    found: dict[str, object] = {}
    meeting.meet()
    found["flops"] = _flops()
    meeting.meet()
    found["memory_bytes_per_s"] = _memory_bytes_per_s()
    meeting.meet()
    if local == 0 and nodes > 1:
        found["link"] = _talk(node, _PORT, (node + 1) % nodes, _PORT, link_bytes, skipped_bytes)
    meeting.meet()
    if local < 2:
        other = min(1 - local, local_size - 1)  # a rank alone in its node talks to itself
        found["loopback"] = _talk(node, _PORT + 1 + local, node, _PORT + 1 + other, loop_bytes, 0)
    print(json.dumps(found), flush=True)


class _Meeting:
    """A barrier at the first rank; the standard library alone takes part in a probe of sockets."""

    def __init__(self, rank: int, world: int) -> None:
        where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._first = rank == 0
        self._others = _accept(where, world - 1) if self._first else [_connect(where)]

    def meet(self) -> None:
        """Return once all ranks have called this."""
        if not self._first:
            self._others[0].sendall(b"?")
        for other in self._others:
            if not other.recv(1):
                sys.exit("error: a rank of the probe went away")
        if self._first:
            for other in self._others:
                other.sendall(b"!")


def _accept(where: tuple[str, int], number: int) -> list[socket.socket]:
    with socket.create_server(where, backlog=max(number, 1)) as listening:
        listening.settimeout(_WAIT_S)
        return [listening.accept()[0] for _ in range(number)]


def _connect(where: tuple[str, int]) -> socket.socket:
    until = time.monotonic() + _WAIT_S
    while True:
        try:
            return socket.create_connection(where, timeout=_WAIT_S)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _talk(node: int, port: int, peer: int, peer_port: int, nbytes: int, skipped: int) -> dict[str, float]:
    """Send to a peer what as much comes in of: B/s that came in after `skipped` bytes, and seconds of a message of one
    byte each way."""
    with socket.create_server((address_of(node), port)) as listening:
        listening.settimeout(_WAIT_S)
        out = _connect((address_of(peer), peer_port))
        into = listening.accept()[0]
    out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    latency_s = median(_ping_s(out, into) for _ in range(_PINGS))
    sending = Thread(target=_send, args=(out, nbytes))
    sending.start()
    bytes_per_s = _receive(into, nbytes, skipped)
    sending.join()
    return {"bytes_per_s": bytes_per_s, "latency_s": latency_s}


def _ping_s(out: socket.socket, into: socket.socket) -> float:
    begin = time.perf_counter()
    out.sendall(b"p")
    into.recv(1)
    return time.perf_counter() - begin


def _send(out: socket.socket, nbytes: int) -> None:
    piece = memoryview(bytearray(_PIECE))
    for begin in range(0, nbytes, _PIECE):
        out.sendall(piece[: min(_PIECE, nbytes - begin)])


def _receive(into: socket.socket, nbytes: int, skipped: int) -> float:
    buffer = bytearray(_PIECE)
    received = before = into.recv_into(buffer, 1)
    begin = time.perf_counter()
    while received < nbytes:
        received += into.recv_into(buffer)
        if before < skipped <= received:
            begin, before = time.perf_counter(), received
    return (nbytes - before) / (time.perf_counter() - begin)


def _flops() -> float:
    """Floating-point operations a second of matrix products in single precision."""
    a, b = (np.ones((_SIDE, _SIDE), np.float32) for _ in range(2))
    return 2.0 * _SIDE**3 / _median_s(lambda: a @ b)


def _memory_bytes_per_s() -> float:
    """Bytes read and written a second by copies of memory."""
    src, dst = (np.ones(_COPY_BYTES, np.uint8) for _ in range(2))
    return 2.0 * _COPY_BYTES / _median_s(lambda: np.copyto(dst, src))


def _median_s(work: Callable[[], object]) -> float:
    work()
    taken: list[float] = []
    while not taken or sum(taken) < _WORK_S:
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return median(taken)


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))

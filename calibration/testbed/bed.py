"""Several nodes on one machine, as a context: namespaces up, commands as ranks in them, everything gone at the end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Self

from foreshard.calibration.testbed.namespaces import Counters, Network, check_machine, remove_leftovers
from foreshard.calibration.testbed.ranks import RankResult, run_ranks
from foreshard.calibration.testbed.shape import BedShape, bed_link, parse_shape

__all__ = ["Testbed"]

_ENDINGS = (signal.SIGTERM, signal.SIGHUP)
_PINNED = False
# Measured with 4 gloo ranks in 2 x 2 on 2 cores that others used too, 5 turns each: the kernel places ranks better. An
# all_to_all of 8 MiB had medians of 135-144 ms free and 158-200 ms pinned (bytes over rate: 135), an all_reduce of
# 4 KiB 8-15 and 11-36 ms; nothing was steadier pinned.


class Testbed:
    """Nodes of `shape` ("2x2": 2 nodes of 2 ranks; "2+1": uneven), each behind a link of `rate` in either direction.

        with Testbed("2x2", "500 Mbit/s") as bed:
            results = bed.run([sys.executable, "train.py"])

    Ranks of a node talk over its loopback, unshaped; across they share the node's link. All ranks share this machine's
    cores and memory. Rate and burst are text with a unit, or B/s and bytes; the burst is what may pass at once after a
    pause. Entering raises UnavailableError, in one sentence, where no testbed can be built, and removes what killed
    runs left behind; leaving removes everything, after an interrupt or SIGTERM too.
    """

    __test__ = False  # a name that pytest would collect

    def __init__(self, shape: BedShape | str, rate: str | float, *, burst: str | float | None = None) -> None:
        self.shape = parse_shape(shape) if isinstance(shape, str) else shape
        self.link = bed_link(rate, burst)
        self.leftovers: tuple[str, ...] = ()
        self._network = Network(self.shape.nodes, self.link)

    def __str__(self) -> str:
        """The bed in words: "testbed 2x2, 500 Mbit/s, burst 131072 B"."""
        link = self.link
        return f"testbed {self.shape}, {link.rate_bytes_per_s * 8 / 1e6:g} Mbit/s, burst {link.burst_bytes:.0f} B"

    def __enter__(self) -> Self:
        check_machine()
        self.leftovers = remove_leftovers()
        self._endings = _endings_raise()
        self._endings.__enter__()
        try:
            self._network.build()
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._take_down()

    def _take_down(self) -> None:
        try:
            with _uninterrupted():
                self._network.remove()
        finally:
            self._endings.__exit__(None, None, None)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Name of each node's namespace, for `ip netns exec NAME ...`, [nodes]."""
        return self._network.nodes

    def counters(self) -> tuple[Counters, ...]:
        """Bytes each node has sent and received over its link, and over its loopback, [nodes]."""
        return self._network.counters()

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        ranks_per_node: Sequence[int] | None = None,
        timeout_s: float | None = None,
        capture: bool = False,
        pinned: bool = _PINNED,
    ) -> tuple[RankResult, ...]:
        """Run `command` as every rank with what torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, GROUP_RANK, ...).

        Returns how each rank ended, [ranks]; with `capture` also what it wrote, else that goes where this process
        writes. `ranks_per_node` starts other numbers of ranks than the bed's shape has. With `pinned` every rank keeps
        to one core, rank after rank. Once a rank fails or `timeout_s` is over, all are ended.
        """
        cores = sorted(os.sched_getaffinity(0))
        return run_ranks(
            command,
            self._network.nodes,
            BedShape(ranks_per_node=tuple(ranks_per_node)) if ranks_per_node else self.shape,
            environment=environment or {},
            cores=lambda rank: str(cores[rank % len(cores)]) if pinned else "-",
            timeout_s=timeout_s,
            capture=capture,
        )


def _raise_exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _endings_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP become exceptions, so that the bed is taken down; only the main thread may ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _raise_exit) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals that end the process wait until this is over."""
    held = {signal.SIGINT, *_ENDINGS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

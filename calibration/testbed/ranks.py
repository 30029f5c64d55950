"""The processes of a bed: started with what torchrun would set, watched together, ended together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from foreshard.calibration.testbed.namespaces import INTERFACE, address_of
from foreshard.calibration.testbed.shape import BedShape

__all__ = ["RankResult", "rank_environment", "run_ranks"]

MASTER_PORT = 29500  # torchrun's own; free in every bed, since the ports of a namespace are its own
_ENTER = str(Path(__file__).with_name("enter.py"))
_GRACE_S = 15.0  # for the others to say themselves that a rank is gone
_KILL_S = 3.0
_LOOK_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class RankResult:
    """How one rank ended: exit code (negative: a signal), and what it wrote if that was captured; `ended` by us."""

    rank: int
    exit_code: int
    ended: bool = False
    stdout: str = ""
    stderr: str = ""


def rank_environment(shape: BedShape) -> tuple[dict[str, str], ...]:
    """What torchrun would set for every rank of a bed, and the interface gloo must use, [ranks]."""
    common = {
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # else it warns that nodes have no names
        "MASTER_ADDR": address_of(0),
        "MASTER_PORT": str(MASTER_PORT),
        "WORLD_SIZE": str(shape.world_size),
        "GROUP_WORLD_SIZE": str(shape.nodes),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # torchrun's default for several ranks on a machine
    }
    seats = [(node, local) for node, ranks in enumerate(shape.ranks_per_node) for local in range(ranks)]
    return tuple(
        common
        | {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(shape.ranks_per_node[node]),
            "GROUP_RANK": str(node),
        }
        for rank, (node, local) in enumerate(seats)
    )


def run_ranks(
    command: Sequence[str],
    namespaces: Sequence[str],
    shape: BedShape,
    *,
    environment: Mapping[str, str],
    cores: Callable[[int], str],
    timeout_s: float | None,
    capture: bool,
) -> tuple[RankResult, ...]:
    """Run `command` as every rank of `shape`, in the namespace of its node; returns how each ended, [ranks].

    Once a rank fails, the others get some seconds to notice and are then ended; a time-out or an exception ends all.
    """
    running: list[_Rank] = []
    try:
        for rank, given in enumerate(rank_environment(shape)):
            entered = [_ENTER, namespaces[int(given["GROUP_RANK"])], str(os.getpid()), cores(rank), *command]
            running.append(_Rank(entered, {**os.environ, **given, **environment}, capture))
        _wait(running, timeout_s)
    finally:
        _end(running)
    return tuple(rank.result(number) for number, rank in enumerate(running))


class _Rank:
    """One process, in a session of its own so that an interrupt at the terminal reaches only who can tidy up."""

    def __init__(self, entered: Sequence[str], environment: Mapping[str, str], capture: bool) -> None:
        # result() closes them
        files = [tempfile.TemporaryFile("w+") for _ in range(2 if capture else 0)]  # noqa: SIM115
        self.ended = False
        self._files: tuple[IO[str], ...] = tuple(files)
        out, err = self._files or (None, None)
        self.process = subprocess.Popen(
            [sys.executable, "-I", *entered],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    def signal(self, number: int) -> None:
        """Send a signal to the process and those it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def result(self, rank: int) -> RankResult:
        """How it ended."""
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        out, err = texts or ("", "")
        return RankResult(rank=rank, exit_code=self.process.wait(), ended=self.ended, stdout=out, stderr=err)


def _wait(running: Sequence[_Rank], timeout_s: float | None) -> None:
    """Return when all have ended, or a failed one's grace or the time is over."""
    until = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
    failed = False
    while True:
        codes = [rank.process.poll() for rank in running]
        if None not in codes or time.monotonic() > until:
            return
        if not failed and any(codes):
            failed, until = True, min(until, time.monotonic() + _GRACE_S)
        time.sleep(_LOOK_S)


def _end(running: Sequence[_Rank]) -> None:
    """End what still runs: politely, then not."""
    alive = [rank for rank in running if rank.process.poll() is None]
    for rank in alive:
        rank.ended = True
        rank.signal(signal.SIGTERM)
    until = time.monotonic() + _KILL_S
    while any(rank.process.poll() is None for rank in alive) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    for rank in running:
        rank.signal(signal.SIGKILL)  # whatever it started and left
        rank.process.wait()

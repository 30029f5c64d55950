"""Starting small runs, with torchrun and without, and counting what they leave behind."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

_WORKER = Path(__file__).with_name("worker.py")
_SECONDS = 240.0  # far beyond any run here, on a busy machine too: what takes longer hangs
_MARK = "FORESHARD_TEST_RUN"


def free_port():
    """A port that nobody listens on, as text."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


class Run:
    """Processes of one test: started, waited for, and none left at the end."""

    def __init__(self):
        self.mark = secrets.token_hex(8)
        self._started = []

    def start(self, command, **environment):
        """Start a command; everything it starts bears the mark."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("TORCHELASTIC", "RANK"))}
        process = subprocess.Popen(
            [str(part) for part in command],
            env={**clean, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", _MARK: self.mark, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def torchrun(self, nproc, order):
        """Start the worker on so many ranks with torchrun."""
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
        return self.start([*launch, _WORKER, json.dumps(order)])

    def by_hand(self, ranks, world_size, order):
        """Start some ranks of a world with nothing but the variables, rank 0 holding the store."""
        port = free_port()
        return [
            self.start(
                [sys.executable, _WORKER, json.dumps(order)],
                RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
            )
            for rank in ranks
        ]  # fmt: skip

    def apart(self, command, *, nodes, local_ranks, last=()):
        """Start a command as ranks of several nodes, as a launcher on each does; `last` is for the last rank only."""
        port, size = free_port(), nodes * local_ranks
        return [
            self.start(
                [*command, *(last if rank == size - 1 else ())],
                RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank % local_ranks),
                LOCAL_WORLD_SIZE=str(local_ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
            )
            for rank in range(size)
        ]  # fmt: skip

    def finish(self, process):
        """(exit code, what it wrote, what it wrote on stderr); fails if it hangs."""
        try:
            out, err = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"the run hangs\n{err}")
        return process.returncode, out, err

    def left(self):
        """Processes of this test that still live a moment after its end."""
        until = time.monotonic() + 5.0
        while (found := self.alive()) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def alive(self):
        """Processes of this test."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_mine(pid)]

    def _is_mine(self, pid):
        with suppress(OSError):
            zombie = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
            return not zombie and f"{_MARK}={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def close(self):
        """End everything of the test."""
        for pid in self.alive():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.communicate()


@pytest.fixture
def ranks():
    """Starts runs; ends what they leave."""
    run = Run()
    yield run
    run.close()


def pytest_collection_modifyitems(items):
    """These tests need processes that /proc shows."""
    if not Path("/proc/self/environ").exists():
        for item in items:
            if {"ranks", "run_of_module"} & set(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.skip(reason="no /proc here to count processes in"))


@pytest.fixture(scope="module")
def run_of_module():
    """As `ranks`, for several tests of one run."""
    run = Run()
    yield run
    run.close()

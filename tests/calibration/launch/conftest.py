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
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return [
            self.start(
                [sys.executable, _WORKER, json.dumps(order)],
                RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            )
            for rank in ranks
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
        while (found := self._alive()) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def _alive(self):
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_mine(pid)]

    def _is_mine(self, pid):
        with suppress(OSError):
            zombie = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
            return not zombie and f"{_MARK}={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def close(self):
        """End everything of the test."""
        for pid in self._alive():
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
            if "ranks" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="no /proc here to count processes in"))

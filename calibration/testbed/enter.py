"""Start a command inside a namespace: `enter.py NAMESPACE CORES COMMAND...`, run by path with nothing imported.

The process becomes the command, so it keeps its id. It dies with whoever started it: a killed testbed leaves no
ranks behind. CORES is a list such as "0,2", or "-" for any.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CLONE_NEWNET = 0x40000000  # linux/sched.h


def _main(namespace: str, parent: int, cores: str, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be asked for
        sys.exit(1)
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(handle, _CLONE_NEWNET):
        sys.exit(f"error: cannot enter the namespace {namespace}: {os.strerror(ctypes.get_errno())}")
    os.close(handle)
    if cores != "-":
        os.sched_setaffinity(0, map(int, cores.split(",")))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: cannot start {command[0]!r}: {error.strerror}")


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])

"""How the ranks of a calibration come to be: in a testbed, started here, or by torchrun."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from foreshard.topologies.errors import InputError, MissingDependencyError

__all__ = ["check_start", "need_torch", "torchrun_command"]


def check_start(command: str, shape: str | None, nproc: int | None) -> None:
    """Raise InputError unless ranks are started in exactly one way."""
    if shape and nproc:
        raise InputError("--testbed and --nproc both start ranks: give one")
    if not shape and nproc is None and "RANK" not in os.environ:
        raise InputError(
            "no ranks: give --nproc N or --testbed NxR, or start them all with "
            f"`torchrun --nproc-per-node N --no-python foreshard calibrate {command} ...`"
        )


def need_torch(what: str) -> None:
    """Raise MissingDependencyError where torch is not installed."""
    if find_spec("torch") is None:
        raise MissingDependencyError(f"{what} needs PyTorch: pip install 'foreshard[run]'")


def torchrun_command(nproc: int) -> list[str]:
    """What starts `nproc` ranks on this machine, before the module they run."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]

"""Starting ranks on this machine with torchrun's own agent, in this process: what the ranks say stands alone."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

import click

from foreshard.calibration.launch.wording import killed
from foreshard.topologies.errors import ForeshardError, MissingDependencyError

__all__ = ["need_torch", "run_here"]

# Ranks of one machine reach each other over its loopback, and one thread each is what ranks that share cores can use.
# What the user has set comes first.
_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo", "OMP_NUM_THREADS": "1"}
_START = "foreshard.calibration.launch.rank_start"
_SHUTDOWN_S = 10  # ranks end themselves within seconds of a signal; after that they are killed


def need_torch(what: str) -> None:
    """Raise MissingDependencyError where torch is not installed."""
    if find_spec("torch") is None:
        raise MissingDependencyError(f"{what} needs PyTorch: pip install 'foreshard[run]'")


def run_here(worker: Sequence[str], nproc: int) -> int:
    """Run `python -m WORKER...` as `nproc` ranks on this machine and return the exit code of the run.

    0 if all ranks ended well, 2 for a mistake in the input, 128 + the signal if the run was interrupted, else 1.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        shutdown_timeout=_SHUTDOWN_S,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # ranks write where this process writes
    )
    with _environment(_ENVIRONMENT), _quiet():
        try:
            elastic_launch(config, sys.executable)("-m", _START, *worker)
        except ChildFailedError as error:  # the ranks have said why, except one that was killed before it joined
            rank, first = error.get_first_failure()
            if first.exitcode < 0:
                click.echo(f"error: {killed(rank, -first.exitcode)}", err=True)
            codes = {failure.exitcode for failure in error.failures.values()}
            return ForeshardError.exit_code if ForeshardError.exit_code in codes else 1
        except SignalException as error:
            return 128 + error.sigval
    return 0


@contextmanager
def _environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set what is not set, and put it back."""
    before = dict(os.environ)
    os.environ.update({**defaults, **before})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the agent's log of a failure that every rank has told in a sentence."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)

"""Ranks on CPUs: the host thread itself computes every operation, in issue order, while collectives run beside it.

The same program, said in what the engine knows of hosts: all work is on one stream, the host waits for whatever an
operation depends on before it computes or issues it, and for what it computes until it is done. So a collective
starts only once the host has come to it, and work that needs its result holds up everything behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from foreshard.simulator.job.program import Compute, Dep, Op, StepProgram

__all__ = ["inlined"]


def inlined(program: StepProgram) -> StepProgram:
    """Return the program as ranks on CPUs run it; names, order and collectives stay.

    What the host would need to launch kernels is part of the work; of a collective, it still is the host's to issue it.
    """
    return replace(program, ops=tuple(_inlined(program.ops)))


def _inlined(ops: tuple[Op, ...]) -> Iterator[Op]:
    computing = _computed(ops[-1], steps_back=1)
    for op in ops:
        waits = tuple(dict.fromkeys((*op.host_waits, *op.deps, *computing)))
        computing = _computed(op, steps_back=0)
        if isinstance(op.work, Compute):
            work = replace(op.work, seconds=op.work.seconds + op.host_s)
            yield replace(op, stream="compute", work=work, host_waits=waits, launches=1, host_s=0.0)
        else:
            yield replace(op, host_waits=waits)


def _computed(op: Op, *, steps_back: int) -> tuple[Dep, ...]:
    """What keeps the host of the next operation: the one before it, if the host computes that."""
    return (Dep(op.name, steps_back),) if isinstance(op.work, Compute) else ()

"""Executes a step program: operations in host issue order, collectives asynchronous, waits where the program has them.

On a CPU the host computes an operation where it stands in the program; on CUDA operations go to the program's streams.
Before step 0 the pipeline is filled: an operation for batch i of a later step runs as soon as there is a batch i. The
last steps prefetch as all others do, so that every step is alike; what was prefetched past the end is not trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foreshard.calibration.ops.device_ops import DeviceOps
from foreshard.calibration.runner.build import build_actions
from foreshard.calibration.runner.interfaces import Pending, Recorder, World
from foreshard.calibration.runner.refusals import refuse
from foreshard.calibration.runner.settings import RunSettings
from foreshard.calibration.runner.shards import HeldRows
from foreshard.calibration.runner.state import Issue
from foreshard.calibration.runner.streams import Key, Streams
from foreshard.simulator.job.program import Collective, Op, StepProgram
from foreshard.simulator.step.prediction import Prediction

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["RunResult", "StepRunner", "run_program"]

_KEPT_STEPS = 2  # steps for which a batch's memory is kept on a GPU, whose streams may still read it


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What training gave on this rank: its loss in every step, warm-up included.

    `vectors` float32 [samples, columns] are the pooled vectors that the dense model saw, step by step, features in the
    order of the tables; only with `RunSettings.keep_vectors`.
    """

    losses: tuple[float, ...]
    vectors: tuple[NDArray[np.float32], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Flying:
    """A collective that was issued and not yet waited for."""

    pending: Pending
    issue: Issue
    group: dist.ProcessGroup


def run_program(prediction: Prediction) -> StepProgram:
    """The program that a run of the scenario executes, with the synchronisation of its replicas."""
    return prediction.program(prediction.scenario.layout.sync if prediction.layout.replicas > 1 else None)


class StepRunner:
    """One rank's training of a scenario; made after all ranks agreed on it.

    `watch` is called with every collective before it is issued. Raises InputError with one sentence for everything that
    cannot be run, before any collective.
    """

    def __init__(
        self, prediction: Prediction, world: World, recorder: Recorder, settings: RunSettings | None = None,
        *, ops: DeviceOps | None = None, watch: Callable[[Op, int, Issue], None] | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings or RunSettings()
        refuse(prediction, self.settings, world.device)
        self.prediction = prediction
        self.program = run_program(prediction)
        self._recorder = recorder
        self._watch = watch
        self._actions = build_actions(prediction, world, self.settings, recorder.phase, ops)
        self._groups = [
            world.group(op.work.groups, op.stream) if isinstance(op.work, Collective) else None
            for op in self.program.ops
        ]
        self._bound = [self._actions.bind(op, group) for op, group in zip(self.program.ops, self._groups, strict=True)]
        self._streams = Streams(world.device)
        self._flying: dict[Key, _Flying] = {}

    def synchronises(self, step: int) -> bool:
        """Whether replicas average their weights in a step."""
        return (step + 1) % self.prediction.scenario.layout.sync_interval == 0

    def run(self, steps: int, warmup: int) -> RunResult:
        """Fill the pipeline, train `warmup` + `steps` steps and wait for all that is under way."""
        total, ahead = warmup + steps, max(op.batch for op in self.program.ops)
        self._actions.loader.prepare(total + ahead, self._recorder.phase)
        self._recorder.phase("filling the pipeline")
        for step in range(-ahead, 0):
            self._step(step)
        losses = []
        for step in range(total):
            self._recorder.step(step)
            self._step(step)
            losses.append(self._actions.batches[step].loss)
            self._retire(step)
        self._recorder.step(total)
        self._settle(list(self._flying))
        return RunResult(
            losses=tuple(float(loss) for loss in losses if loss is not None),
            vectors=tuple(vectors.cpu().numpy() for vectors in self._actions.model.vectors),
        )

    def held_rows(self) -> Iterator[HeldRows]:
        """Copies of all rows that this rank holds, with the optimizer's state."""
        return self._actions.shards.held()

    def dense_parameters(self) -> NDArray[np.float32]:
        """A copy of the dense parameters, float32 [num_parameters]."""
        values: NDArray[np.float32] = self._actions.model.parameters.cpu().numpy().copy()
        return values

    def _step(self, step: int) -> None:
        for index, op in enumerate(self.program.ops):
            if step + op.batch >= 0 and not self._left_out(op, step):
                self._run(index, op, step)

    def _left_out(self, op: Op, step: int) -> bool:
        return op.label == "replica_sync" and not self.synchronises(step)

    def _run(self, index: int, op: Op, step: int) -> None:
        """Wait for what the operation needs, then run or issue it; operations of step -1 or before are not recorded."""
        waits = [(dep.op, step - dep.steps_back) for dep in op.host_waits]
        needs = [(dep.op, step - dep.steps_back) for dep in op.deps]
        with self._streams.use(op.stream):
            self._streams.wait(op.stream, needs)
            self._settle([*waits, *needs])
            self._streams.hold_host(waits)
            if isinstance(op.work, Collective):
                self._issue(index, op, step)
                return
            with self._recorder.compute(index) if step >= 0 else nullcontext():
                self._bound[index](step + op.batch)
            self._streams.done(op, step)

    def _issue(self, index: int, op: Op, step: int) -> None:
        issue, group = self._bound[index](step + op.batch), self._groups[index]
        assert group is not None
        if issue is None or not issue.moves:
            return
        if self._watch is not None:
            self._watch(op, step, issue)
        if step < 0:
            pending: Pending = issue.start()
        else:
            here = group.rank()
            pending = self._recorder.collective(
                index, issue.start, sent_bytes=issue.bytes_to_others(here), received_bytes=issue.bytes_from_others(here)
            )
        self._flying[op.name, step] = _Flying(pending=pending, issue=issue, group=group)

    def _settle(self, keys: list[Key]) -> None:
        """Wait for collectives, and for those issued before them on the same group, which have ended by then."""
        for key in keys:
            wanted = self._flying.get(key)
            while wanted is not None and key in self._flying:
                first = next(name for name, one in self._flying.items() if one.group is wanted.group)
                ready = self._flying.pop(first)
                ready.pending.wait()
                if ready.issue.finish is not None:
                    ready.issue.finish()

    def _retire(self, step: int) -> None:
        """Give back the memory of batches that no stream reads any more."""
        old = step - _KEPT_STEPS if self._streams.on_gpu else step
        if old >= 0:
            self._streams.retire(self.program.ops[-1].name, old)
            self._actions.batches.pop(old, None)

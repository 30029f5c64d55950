"""What the runner asks of a world of processes and of a recorder; calibration.launch has both."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Stream

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["Recorder", "World"]


class World(Protocol):
    """This rank among all, its device, and its process groups."""

    @property
    def rank(self) -> int:
        """This process among all."""

    @property
    def world_size(self) -> int:
        """Processes in all."""

    @property
    def device(self) -> torch.device:
        """Where this rank's tensors lie."""

    def group(self, groups: Groups, stream: Stream) -> dist.ProcessGroup:
        """This rank's process group among `groups`, members in the order that `groups` gives them.

        Made when first asked for: every rank asks in the order of the program. Collectives of a group run one after
        the other in the order of issue.
        """


class Recorder(Protocol):
    """Takes the times of operations, by their index in `StepRunner.program.ops`.

    `step(n)` is called when step n begins, warm-up included, and `step(steps)` after the last one: all that lies before
    step 0 fills the pipeline. Steps without a synchronisation of replicas (sync_interval) never name its operations.
    """

    def step(self, number: int) -> None:
        """Step `number` begins."""

    def compute(self, index: int) -> AbstractContextManager[object]:
        """Around the work of a compute operation, entered when all that it waits for is there."""

    def issued(self, index: int) -> None:
        """A collective is about to be handed to torch.distributed; all that it waits for is there."""

    def waits(self, index: int) -> None:
        """The host begins to wait for the collective."""

    def finished(self, index: int, step: int) -> None:
        """The collective of that step is done: called by the callback of its future, on another thread.

        On CUDA the callback's current stream is the one that waits for the collective.
        """

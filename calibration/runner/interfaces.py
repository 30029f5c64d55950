"""What the runner asks of a world of processes and of a recorder; calibration.launch has both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Stream

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["Pending", "Recorder", "World"]


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


class Pending(Protocol):
    """A collective on its way."""

    def wait(self) -> object:
        """Return when it is finished; on CUDA, make the current stream wait for it."""


class Recorder(Protocol):
    """Takes the times of operations, by their place in the `ops` of the program."""

    def phase(self, name: str) -> None:
        """The rank does something outside of steps."""

    def step(self, number: int) -> None:
        """Step `number` begins, warm-up included; called once more when the last one is over.

        An operation that a step leaves out, as those of `sync_interval` in other steps, is not recorded in it.
        """

    def compute(self, index: int) -> AbstractContextManager[object]:
        """Around the work of a compute operation, entered when all that it waits for is there."""

    def collective(
        self,
        index: int,
        issue: Callable[[], dist.Work],
        *,
        sent_bytes: float | None = None,
        received_bytes: float | None = None,
    ) -> Pending:
        """Call `issue`, which starts a collective, when all that it waits for is there; bytes to and from others."""

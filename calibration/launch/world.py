"""The process groups of a run: one for each set of ranks that talks on a stream, on NCCL with GPUs, else on gloo."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeVar

from foreshard.calibration.launch.place import Place
from foreshard.simulator.job.layout import Groups
from foreshard.simulator.job.program import Collective, StepProgram, Stream

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["BackendName", "World"]

BackendName = Literal["nccl", "gloo"]
T = TypeVar("T")

_SERIAL = "foreshard_gloo"
_DEFAULT_STREAMS: tuple[Stream, ...] = ("comm", "dense_comm")  # TorchRec and DDP use the world's own group for both


class World:
    """This rank and its process groups; every rank must ask for the same groups in the same order.

    `group` gives the process group of this rank for one of a program's `Groups` on one of its streams: gloo groups run
    their collectives one after the other in the order of issue, as one NCCL stream does. Members keep the order that
    `Groups` gives them, so that a rank's position there is its rank in the process group. `control` is a gloo group of
    all ranks for clocks and results, apart from what is measured.
    """

    def __init__(
        self, place: Place, store: dist.Store, *, timeout_s: float, backend: BackendName | None = None
    ) -> None:
        import torch
        import torch.distributed as dist

        self.place = place
        self.backend: BackendName = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        self.device: torch.device = torch.device("cpu")
        if self.backend == "nccl":
            self.device = torch.device("cuda", place.local_rank)
            torch.cuda.set_device(self.device)
        self._timeout = timedelta(seconds=timeout_s)
        self._groups: dict[tuple[Stream, tuple[tuple[int, ...], ...]], dist.ProcessGroup] = {}
        _register_serial_gloo()
        dist.init_process_group(
            self._backend_name,
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=self._timeout,
            device_id=self.device if self.backend == "nccl" else None,
        )
        self.control: dist.ProcessGroup = dist.new_group(
            backend=_SERIAL, timeout=self._timeout, group_desc="foreshard control", device_id=None
        )

    @property
    def rank(self) -> int:
        """This process among all."""
        return self.place.rank

    @property
    def world_size(self) -> int:
        """Processes in all."""
        return self.place.world_size

    @property
    def _backend_name(self) -> str:
        return _SERIAL if self.backend == "gloo" else self.backend

    def prepare(self, program: StepProgram) -> None:
        """Create the process groups of all collectives of a program, in its order."""
        for op in program.ops:
            if isinstance(op.work, Collective):
                self.group(op.work.groups, op.stream)

    def group(self, groups: Groups, stream: Stream = "comm") -> dist.ProcessGroup:
        """This rank's process group among `groups` on a stream; made when first asked for, by its members together.

        The same members on another stream get a group of their own, except that the world's default group serves both
        "comm" and "dense_comm". Groups are known by the members of all of them: torch names a new group by how many its
        process has made before, so all members must have made equally many.
        """
        key = (stream, tuple(tuple(group.tolist()) for group in groups.members))
        if key not in self._groups:
            self._groups[key] = self._make(stream, key[1][int(groups.group_of[self.rank])])
        return self._groups[key]

    def everyones(self, own: T) -> list[T]:
        """What every rank gives, [ranks], over `control`; all ranks call it together, and what they give is pickled."""
        import torch.distributed as dist

        found: list[T | None] = [None] * self.world_size
        dist.all_gather_object(found, own, group=self.control)
        return found  # type: ignore[return-value]  # every place is filled

    def _make(self, stream: Stream, members: tuple[int, ...]) -> dist.ProcessGroup:
        import torch.distributed as dist

        if members == tuple(range(self.world_size)) and stream in _DEFAULT_STREAMS:
            assert dist.group.WORLD is not None
            return dist.group.WORLD
        group: dist.ProcessGroup = dist.new_group(
            list(members),
            backend=self._backend_name,
            timeout=self._timeout,
            use_local_synchronization=True,  # only members take part, not the world for each of 512 groups
            group_desc=stream,
            sort_ranks=False,
        )
        return group

    def close(self) -> None:
        """Leave all groups. A run that failed must not call this: NCCL would wait for the others."""
        import torch.distributed as dist

        self._groups.clear()
        dist.destroy_process_group()


def _register_serial_gloo() -> None:
    """Make gloo with one worker thread a backend that torch.distributed knows by name.

    With gloo's default of two threads a later collective of a group may overtake an earlier one.
    """
    import torch.distributed as dist

    if _SERIAL.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(_SERIAL, _serial_gloo, devices=["cpu"])


def _serial_gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    import torch.distributed as dist

    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._threads = 1
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    devices = [dist.ProcessGroupGloo.create_device(interface=name) for name in (interface or "").split(",") if name]
    options._devices = devices or [dist.ProcessGroupGloo.create_default_device()]
    return dist.ProcessGroupGloo(store, rank, size, options)

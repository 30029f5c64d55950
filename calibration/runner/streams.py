"""CUDA streams of a program, and the events by which they wait for each other; on a CPU there are none."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from foreshard.simulator.job.program import Op, Stream

if TYPE_CHECKING:
    import torch

__all__ = ["Key", "Streams"]

Key = tuple[str, int]  # operation, step


class Streams:
    """One CUDA stream for each stream of the program; "compute" is the current one. Times on GPUs: not measured."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[Stream, torch.cuda.Stream] = {}
        self._events: dict[Key, torch.cuda.Event] = {}

    @property
    def on_gpu(self) -> bool:
        """Whether there are streams at all."""
        return self._device.type == "cuda"

    def use(self, stream: Stream) -> AbstractContextManager[object]:
        """Make a stream the current one."""
        import torch

        return torch.cuda.stream(self._of(stream)) if self.on_gpu else nullcontext()

    def _of(self, stream: Stream) -> torch.cuda.Stream:
        import torch

        if stream not in self._streams:
            own = torch.cuda.current_stream(self._device) if stream == "compute" else torch.cuda.Stream(self._device)
            self._streams[stream] = own
        return self._streams[stream]

    def wait(self, stream: Stream, keys: Iterable[Key]) -> None:
        """Let a stream wait for compute operations of other streams."""
        if self.on_gpu:
            for event in (self._events[key] for key in keys if key in self._events):
                self._of(stream).wait_event(event)

    def hold_host(self, keys: Iterable[Key]) -> None:
        """Let the host wait for compute operations."""
        if self.on_gpu:
            for event in (self._events[key] for key in keys if key in self._events):
                event.synchronize()

    def done(self, op: Op, step: int) -> None:
        """Mark the end of an operation on its stream."""
        import torch

        if self.on_gpu:
            event = torch.cuda.Event()
            event.record(self._of(op.stream))
            self._events[op.name, step] = event

    def retire(self, last: str, step: int) -> None:
        """Let every stream wait for operation `last` of a step, whose memory is given back, and forget older events."""
        for stream in self._streams:
            self.wait(stream, [(last, step)])
        self._events = {key: event for key, event in self._events.items() if key[1] >= step}

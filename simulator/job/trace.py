"""The step trace: what ran when on which rank, whoever made it, the simulator or a real run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.program import CollectiveKind, Stage, Stream
from foreshard.topologies.units import format_ms, format_us

__all__ = ["CollectiveInfo", "OpInfo", "Span", "StepTrace"]


class Span(NamedTuple):
    """One operation on one rank, times in seconds from the start of the reported step."""

    rank: int
    stream: Stream
    name: str
    label: str
    stage: Stage
    batch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveInfo:
    """What a collective moved: bytes of the busiest rank, groups, algorithm, and the bound of its slowest group.

    `time_s` is the transfer alone, from the moment the last member joined to the end, in the slowest group.
    `group_size` is the largest of `group_sizes`; ranks that have no peers are left out where others have. `peers` is
    the most peers in other nodes that a rank of an all-to-all posts to.
    """

    kind: CollectiveKind
    algorithm: str
    group_size: int
    groups: int
    max_bytes_out: float
    max_bytes_in: float
    time_s: float
    bound_s: float
    bottleneck: str
    group_sizes: tuple[int, ...] = ()
    peers: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class OpInfo:
    """The description of one operation of the program, as the trace keeps it."""

    name: str
    label: str
    stage: Stage
    stream: Stream
    batch: int
    collective: CollectiveInfo | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepTrace:
    """One steady-state step: `start_s` and `end_s` [ops, ranks], seconds from the step's start on rank clocks.

    `step_time_s` is the distance between equal marks of two successive steps. `wait_s` [ops, ranks] is the part of
    a collective's span in which the rank waited for the last member, `launch_s` [ops, ranks] the part of a compute
    span in which the device waited for the host to launch the next kernel, `copied_s` [ops, ranks] the part at its
    beginning in which bytes crossed the host's links. `host_s` is the host's time to issue one
    step: no step can be shorter. `events` counts simulator events of the run.
    """

    source: Literal["predicted", "measured"]
    ops: tuple[OpInfo, ...]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    wait_s: NDArray[np.float64]
    step_time_s: float
    launch_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    copied_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    host_s: float = 0.0
    events: int = 0
    link_bytes: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def _repr_html_(self) -> str:
        took = np.nan_to_num(self.end_s - self.start_s)
        body = "".join(
            f"<tr><td>{escape(op.name)}</td><td>{op.stage}</td><td>{op.stream}</td>"
            f"<td>{format_us(float(times.mean()))}</td><td>{format_us(float(times.max()))}</td></tr>"
            for op, times in zip(self.ops, took, strict=True)
        )
        head = "".join(f"<th>{name}</th>" for name in ("operation", "stage", "stream", "mean", "longest"))
        about = f"{self.source} step of {self.world_size} ranks: {format_ms(self.step_time_s)}"
        return f"<div>{about}</div><table><tr>{head}</tr>{body}</table>"

    @property
    def world_size(self) -> int:
        """Ranks in the trace."""
        return int(self.start_s.shape[1])

    def spans(self, rank: int) -> Iterator[Span]:
        """All spans of one rank in issue order."""
        for index, op in enumerate(self.ops):
            yield Span(
                rank, op.stream, op.name, op.label, op.stage, op.batch,
                float(self.start_s[index, rank]), float(self.end_s[index, rank]),
            )  # fmt: skip

"""Operations of a step in the order in which the host issues them, each with its launches and host time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from foreshard.simulator.job.program import AllToAll, Collective, Compute, Dep, HostCopy, Op, Stage, Stream
from foreshard.simulator.job.work import Work
from foreshard.simulator.step.costs import CostModel

__all__ = ["OpList"]


@dataclass(slots=True, kw_only=True)
class OpList:
    """Operations added so far; `costs` says what issuing them takes, `steps` how every all_to_all is carried out."""

    costs: CostModel
    steps: AllToAll = "pairwise"
    ops: list[Op] = field(default_factory=list)

    def compute(
        self, name: str, stage: Stage, stream: Stream, works: tuple[Work, ...], launches: float,
        *, deps: tuple[Dep, ...] = (), batch: int = 0, copies: tuple[HostCopy, ...] = (),
    ) -> None:  # fmt: skip
        """Add works that the host issues as so many kernel launches, after `copies` over the host's links."""
        seconds = sum((work.seconds for work in works[1:]), start=works[0].seconds)
        count = round(launches)
        self.ops.append(
            Op(
                name=name,
                label=_label(name),
                stage=stage,
                stream=stream,
                work=Compute(seconds=seconds, works=works, copies=copies),
                deps=deps,
                batch=batch,
                launches=count,
                host_s=self.costs.launching(count, works),
            )
        )

    def collective(
        self, name: str, stage: Stage, stream: Stream, work: Collective,
        *, deps: tuple[Dep, ...] = (), batch: int = 0, waits: tuple[Dep, ...] = (), label: str | None = None,
    ) -> None:  # fmt: skip
        """Add a collective; the host stops until the operations in `waits` are done before it issues it."""
        self.ops.append(
            Op(
                name=name,
                label=label or _label(name),
                stage=stage,
                stream=stream,
                work=replace(work, steps=self.steps) if work.kind == "all_to_all" else work,
                deps=deps,
                batch=batch,
                host_s=self.costs.issue(),
                host_waits=waits,
            )
        )


def _label(name: str) -> str:
    """The span's name in TorchRec's words: the part before the first dot."""
    return name.split(".", 1)[0]

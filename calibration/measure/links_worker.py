"""One rank of `foreshard calibrate links`: `python -m foreshard.calibration.measure.links_worker FILE [JSON]`.

Starts under whatever sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0 keeps every finished point in FILE;
JSON are the options of a LinkPlan, and what the settings say of the bed.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tqdm import tqdm

from foreshard.calibration.launch.session import Limits, Session
from foreshard.calibration.launch.world import BackendName
from foreshard.calibration.measure.link_bench import LinkBench
from foreshard.calibration.measure.link_plan import LinkPlan
from foreshard.calibration.measure.link_records import LinkRecord, RecordFile, Settings
from foreshard.topologies.units import format_bytes

__all__ = ["WorkerOptions", "measure_links"]

_HANG_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """What every rank is told; `bed` and `pinned` describe the testbed it runs in."""

    plan: LinkPlan = field(default_factory=LinkPlan)
    backend: BackendName | None = None
    bed: str = ""
    pinned: bool = False


def measure_links(file: str | Path, options: WorkerOptions) -> None:
    """Measure as the rank that the environment says, together with all others; rank 0 writes `file`."""
    import torch

    torch.set_num_threads(1)
    with Session.join(Limits(hang_s=_HANG_S + options.plan.longest_run_s)) as session:
        session.agree({"torch": torch.__version__, **_flat(options)})
        world = session.world(options.backend)
        nodes = world.everyones(session.place.node)
        kept = RecordFile(file) if world.rank == 0 else None
        settings = Settings.of(world, nodes, bed=options.bed, pinned=options.pinned)
        known = world.everyones(kept.begin(settings) if kept else [])[0]
        bench = LinkBench(world, session.progress, np.array(nodes), options.plan)
        _measure(bench, kept, {record.key: record for record in known})


def _measure(bench: LinkBench, kept: RecordFile | None, known: dict[Any, LinkRecord]) -> None:
    """Every rank comes to the same records, so every rank leaves out the same points."""
    curves = [tasks for tasks in bench.curves() if tasks]
    total = sum(map(len, curves))
    with tqdm(total=total, unit="point", disable=None if kept else True, delay=2, file=sys.stderr) as bar:
        for tasks in curves:
            last: LinkRecord | None = None
            bar.set_description(tasks[0].label, refresh=False)
            for number, task in enumerate(tasks):
                if last is not None and bench.too_long(last, task.record.nbytes):
                    bar.update(len(tasks) - number)
                    break
                bar.set_postfix_str(format_bytes(task.record.nbytes))
                last = known.get(task.record.key)
                if last is None:
                    last = bench.measure(task)
                    if kept is not None:
                        kept.add(last)
                bar.update()


def _flat(options: WorkerOptions) -> dict[str, Any]:
    return {"backend": options.backend, **asdict(options.plan)}


if __name__ == "__main__":
    measure_links(sys.argv[1], msgspec.json.decode(sys.argv[2] if len(sys.argv) > 2 else "{}", type=WorkerOptions))

"""What is measured on: processors, memory, GPUs, software, ranks; and a profile that begins with it."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

from foreshard.calibration.launch.world import World
from foreshard.simulator.measured.profile import Profile, Provenance
from foreshard.topologies.units import format_bytes

__all__ = ["Bench", "cpu_name", "device_name", "hardware", "profile_of", "versions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What all records of a file have in common: the machine, its software, the ranks that measured.

    `node_of` [ranks] of the world, all of them active; `bed` is the testbed in words, empty without one.
    """

    backend: Literal["nccl", "gloo"]
    device: Literal["cpu", "cuda"]
    device_name: str
    hardware: str
    versions: dict[str, str]
    node_of: tuple[int, ...]
    bed: str = ""

    @classmethod
    def of(cls, world: World, node_of: Sequence[int], **details: Any) -> Self:
        """This machine and the world's ranks; `details` are the other fields."""
        device: Literal["cpu", "cuda"] = "cpu" if world.device.type == "cpu" else "cuda"
        return cls(
            backend=world.backend,
            device=device,
            device_name=device_name(device),
            hardware=hardware(),
            versions=versions(),
            node_of=tuple(node_of),
            **details,
        )

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        """Ranks of each node."""
        return tuple(self.node_of.count(node) for node in dict.fromkeys(self.node_of))


def profile_of(
    bench: Bench, part: str, *, name: str, command: str, notes: tuple[str, ...], how: str = "", **parts: Any
) -> Profile:
    """A profile of newly measured `parts`, with where they are from: `part` names them, `how` says what was special."""
    provenance = Provenance(
        name=part,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        hardware=", ".join(filter(None, [bench.hardware, bench.bed, how])),
        versions=bench.versions,
        notes=notes,
    )
    return Profile(
        name=name,
        provenance=(provenance,),
        backend=bench.backend,
        device=bench.device,
        device_name=bench.device_name,
        ranks_per_node=tuple(sorted(bench.ranks_per_node, reverse=True)),
        **parts,
    )


def cpu_name() -> str:
    """The processor as the kernel names it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def device_name(device: Literal["cpu", "cuda"]) -> str:
    """The device of this rank as its library names it."""
    if device == "cpu":
        return cpu_name()
    import torch

    return str(torch.cuda.get_device_name())


def hardware() -> str:
    """This host in a line: processor, usable cores, memory, GPUs."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [
        cpu_name(),
        f"{cores} cores",
        f"{format_bytes(memory)} of memory",
        f"{platform.system()} {platform.release()}",
    ]
    return ", ".join([*parts, *_gpus()])


def _gpus() -> list[str]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"{count} x {torch.cuda.get_device_name(0)}"] if count else []


def versions() -> dict[str, str]:
    """Versions of what takes part: foreshard, Python, torch, and of CUDA and NCCL where there are GPUs."""
    import torch

    found = {"foreshard": version("foreshard"), "python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found

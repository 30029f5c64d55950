"""What is measured on, in words: processors, memory, GPUs, software."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from foreshard.topologies.units import format_bytes

__all__ = ["cpu_name", "device_name", "hardware", "versions"]


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

"""A pytest plugin that stands in for CuPy: NumPy arrays, and a RawModule whose kernels run on the CPU through the shim.

With it the GPU tests, CupyDevice and all wrappers run unchanged where there is no GPU; test_cupy_device.py does so.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

_CONFTEST = Path(__file__).parents[1] / "conftest.py"


class RawModule:
    """Compiles nothing: the shim's library has every kernel."""

    def __init__(self, *, code: str, options: tuple[str, ...], backend: str) -> None:
        assert "KERNEL" in code
        assert backend == "nvrtc"

    def get_function(self, name: str) -> Any:
        def call(grid: tuple[int], block: tuple[int], args: tuple[Any, ...], shared_mem: int) -> None:
            on_cpu().launch(name, *grid, args, threads=block[0], shared_bytes=shared_mem)

        return call


class Device(nullcontext):
    """The current device, which has always done its work."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


def on_cpu() -> Any:
    """The device of the kernel tests."""
    if "shim_conftest" not in sys.modules:
        spec = importlib.util.spec_from_file_location("shim_conftest", _CONFTEST)
        sys.modules["shim_conftest"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.library = module.ctypes.CDLL(str(module.compile_shim()))
    conftest = sys.modules["shim_conftest"]
    return conftest.ShimDevice(conftest.library, 1, 128, 3)


def make_cupy() -> ModuleType:
    fake = ModuleType("cupy")
    fake.__dict__.update({name: getattr(np, name) for name in dir(np) if not name.startswith("_")})
    stream = SimpleNamespace(synchronize=lambda: None)
    pinned = SimpleNamespace(type=1)
    fake.asarray, fake.asnumpy = np.array, np.asarray
    fake.RawModule = RawModule
    fake.cuda = SimpleNamespace(
        runtime=SimpleNamespace(
            getDeviceCount=lambda: 1,
            CUDARuntimeError=RuntimeError,
            pointerGetAttributes=lambda address: pinned,
            memoryTypeUnregistered=0,
        ),
        Device=Device,
        Stream=SimpleNamespace(from_external=None),
        alloc_pinned_memory=bytearray,
        get_current_stream=lambda: stream,
    )
    return fake


sys.modules["cupy"] = make_cupy()

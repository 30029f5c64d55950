"""Every implementation of DeviceOps that can run here: torch, the kernels through the CPU shim, both on a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'foreshard[test]'")

from foreshard.calibration.ops.kernel_ops import KernelOps  # noqa: E402
from foreshard.calibration.ops.torch_ops import TorchOps  # noqa: E402

torch.set_num_threads(1)  # tensors are tiny: more threads only wait for each other

KERNEL_TESTS = Path(__file__).parents[2] / "kernels" / "conftest.py"


@cache
def kernel_tests() -> ModuleType:
    """The shim of the kernel tests, which pytest does not share with other folders."""
    spec = importlib.util.spec_from_file_location("foreshard_shim_conftest", KERNEL_TESTS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernels_on_cpu() -> KernelOps:
    shim = kernel_tests()

    class TorchShim(shim.ShimDevice):
        """Takes torch CPU tensors as the CuPy device takes CUDA tensors: on their memory, bf16 as uint16."""

        def take(self, given: Any, what: str) -> np.ndarray:
            assert given.is_contiguous(), what
            bits = given.detach()
            return bits.view(torch.int16).numpy().view(np.uint16) if bits.dtype == torch.bfloat16 else bits.numpy()

        def give(self, result: np.ndarray, like: object) -> Any:
            return torch.from_numpy(np.ascontiguousarray(result))

    library = ctypes.CDLL(str(shim.compile_shim()))
    return KernelOps(torch.device("cpu"), TorchShim(library, 3, 64, 3))


def make(name: str) -> TorchOps:
    if name == "torch":
        return TorchOps(torch.device("cpu"))
    if name == "kernels on the CPU":
        if shutil.which("g++") is None:
            pytest.skip("no g++ here: kernels cannot be compiled for the CPU")
        return kernels_on_cpu()
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return TorchOps(torch.device("cuda")) if name == "torch on a GPU" else KernelOps(torch.device("cuda"))


NAMES = [
    "torch",
    "kernels on the CPU",
    pytest.param("torch on a GPU", marks=pytest.mark.gpu),
    pytest.param("kernels on a GPU", marks=pytest.mark.gpu),
]


@pytest.fixture(scope="session", params=NAMES)
def ops(request: pytest.FixtureRequest) -> TorchOps:
    return make(request.param)

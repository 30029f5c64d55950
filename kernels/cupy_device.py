"""CUDA devices through CuPy: kernels compiled by NVRTC at first use, torch tensors by DLPack, the current stream."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from foreshard.kernels.device import Argument
from foreshard.kernels.sources import OPTIONS, file_of, source_text
from foreshard.topologies.errors import ForeshardError, InputError, MissingDependencyError

__all__ = ["CupyDevice", "cupy_device"]

_FIRST_CUPY = 14  # knows the CUDA stream protocol, and offers the extra `ctk` that pyproject.toml names

_INSTALL = (
    "CUDA kernels need CuPy, which is not installed: pip install 'foreshard[gpu]' for CUDA 12 or "
    "'foreshard[gpu-cuda13]' for CUDA 13; without a GPU use foreshard.kernels.reference"
)


@cache
def cupy_device() -> CupyDevice:
    """The CUDA devices of this process. Raises MissingDependencyError without CuPy, ForeshardError without a GPU."""
    try:
        cupy = import_module("cupy")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(_INSTALL) from error
    except ImportError as error:
        raise MissingDependencyError(
            f"CuPy is installed but cannot be imported: {error}; reinstall it, or use foreshard.kernels.reference"
        ) from error
    if not hasattr(cupy.cuda.Stream, "from_external"):
        raise MissingDependencyError(
            f"CuPy {cupy.__version__} is installed: expected {_FIRST_CUPY} or newer, pip install --upgrade "
            "'foreshard[gpu]' or 'foreshard[gpu-cuda13]'"
        )
    return CupyDevice(cupy)


class _TorchStream:
    """A stream of torch by the CUDA stream protocol, which torch's own objects speak only in newer versions.

    https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html#cuda-stream-protocol
    """

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._address)


class CupyDevice:
    """Kernels on the current CUDA device and stream; implements `device.Device`."""

    threads = 128  # four warps: enough blocks for an even end of the grid, and shared memory for wide rows

    def __init__(self, cupy: Any) -> None:
        self.xp = cupy
        self._functions: dict[str, Any] = {}
        self._modules: dict[str, Any] = {}
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise ForeshardError(
                f"no CUDA device can be used here ({error}): use foreshard.kernels.reference"
            ) from error
        if not count:
            raise ForeshardError(
                "CuPy sees no CUDA device: check CUDA_VISIBLE_DEVICES, or use foreshard.kernels.reference"
            )

    def launch(self, kernel: str, grid: int, args: Sequence[Argument], *, threads: int, shared_bytes: int = 0) -> None:
        """Run `kernel` on the current stream."""
        packed = tuple(np.uint64(0) if arg is None else arg for arg in args)
        self._function(kernel)((grid,), (threads,), packed, shared_mem=shared_bytes)

    def _function(self, kernel: str) -> Any:
        if kernel not in self._functions:
            self._functions[kernel] = self._module(file_of(kernel)).get_function(kernel)
        return self._functions[kernel]

    def _module(self, file: str) -> Any:
        if file not in self._modules:
            self._modules[file] = self.xp.RawModule(code=source_text(file), options=OPTIONS, backend="nvrtc")
        return self._modules[file]

    def take(self, given: object, what: str) -> Any:
        """`given`, a CuPy array or a torch CUDA tensor, as a CuPy array on the same memory; bf16 becomes uint16."""
        if isinstance(given, self.xp.ndarray):
            array = given
        elif _is_torch(given):
            array = self._from_torch(given, what)
        else:
            raise InputError(
                f"{what} is a {type(given).__module__}.{type(given).__name__}: expected a CuPy array or a torch CUDA "
                "tensor (foreshard.kernels.reference takes NumPy arrays)"
            )
        if not array.flags.c_contiguous:
            raise InputError(f"{what} {tuple(array.shape)} is not contiguous: pass a contiguous copy of it")
        return array

    def _from_torch(self, tensor: Any, what: str) -> Any:
        if not tensor.is_cuda:
            raise InputError(
                f"{what} is a torch tensor on {tensor.device}: expected a CUDA tensor, move it with .cuda()"
            )
        torch = sys.modules["torch"]
        tensor = tensor.detach()
        try:
            if tensor.dtype == torch.bfloat16:  # DLPack has bf16, NumPy and CuPy have not
                return self.xp.from_dlpack(tensor.view(torch.int16)).view(np.uint16)
            return self.xp.from_dlpack(tensor)
        except (BufferError, NotImplementedError, RuntimeError, TypeError) as error:
            raise InputError(
                f"{what} is a torch tensor of {tensor.dtype} that CuPy cannot share ({error}): expected a dense one "
                "of a dtype that the kernels know"
            ) from error

    def give(self, result: Any, like: object) -> Any:
        """`result` as a torch tensor on the same memory where `like` is one, else as it is."""
        return sys.modules["torch"].from_dlpack(result) if _is_torch(like) else result

    def on(self, *given: object) -> AbstractContextManager[Any]:
        """The device of the arrays, and torch's current stream where a tensor is among them, else CuPy's."""
        numbers = sorted({number for item in given if (number := _device_number(item)) is not None})
        if len(numbers) > 1:
            raise InputError(f"arrays lie on CUDA devices {numbers}: expected all on one, move them there")
        context = ExitStack()
        if numbers:
            context.enter_context(self.xp.cuda.Device(numbers[0]))
        if any(_is_torch(item) and _device_number(item) is not None for item in given):
            stream = sys.modules["torch"].cuda.current_stream(numbers[0])
            context.enter_context(self.xp.cuda.Stream.from_external(_TorchStream(stream.cuda_stream)))
        return context

    def upload(self, host: np.ndarray[Any, Any]) -> Any:
        """A copy on the current device; structures as their bytes."""
        return self.xp.asarray(host.view(np.uint8) if host.dtype.names else host)

    def stable_argsort(self, keys: Any) -> Any:
        """CuPy's argsort, which is a stable radix sort."""
        return keys.argsort()

    def address(self, array: Any) -> int:
        """The device address, or of a NumPy array in pinned memory its unified address."""
        return int(array.ctypes.data) if isinstance(array, np.ndarray) else int(array.data.ptr)

    def reaches(self, array: Any) -> bool:
        """Whether an array of the host is pinned; those of CuPy lie on a device."""
        if not isinstance(array, np.ndarray) or not array.size:
            return True
        runtime = self.xp.cuda.runtime
        return bool(runtime.pointerGetAttributes(self.address(array)).type != runtime.memoryTypeUnregistered)

    def synchronize(self) -> None:
        """Waits for all streams of the device, torch's too."""
        self.xp.cuda.Device().synchronize()


def _is_torch(given: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def _device_number(given: Any) -> int | None:
    if _is_torch(given):
        return int(given.device.index) if given.is_cuda else None
    number = getattr(getattr(given, "device", None), "id", None)
    return None if number is None else int(number)

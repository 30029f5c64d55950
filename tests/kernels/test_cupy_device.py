"""The thin CuPy layer without a GPU: a fake CuPy and a fake torch record what would be asked of the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import foreshard.kernels
from foreshard.kernels.cupy_device import CupyDevice, cupy_device
from foreshard.kernels.sources import KERNELS, OPTIONS, file_of, source_text
from foreshard.topologies.errors import ForeshardError, InputError, MissingDependencyError

HERE = Path(__file__).parent


class FakeArray:
    """A CuPy array: only what CupyDevice looks at."""

    def __init__(self, number: int = 0, *, contiguous: bool = True, source: Any = None, dtype: str = "int16") -> None:
        self.device, self.flags = SimpleNamespace(id=number), SimpleNamespace(c_contiguous=contiguous)
        self.shape, self.source, self.dtype = (2, 2), source, np.dtype(dtype)
        self.data = SimpleNamespace(ptr=4096)

    def view(self, dtype: Any) -> FakeArray:
        return FakeArray(self.device.id, source=self.source, dtype=dtype)


class FakeCudaError(RuntimeError):
    pass


class FakeCupy(SimpleNamespace):
    """CuPy with one recorder: `log` lists what was compiled, launched and entered, in order."""

    def __init__(self, devices: int = 1, *, share: Any = None) -> None:
        log: list[Any] = []

        class RawModule:
            def __init__(self, *, code: str, options: tuple[str, ...], backend: str) -> None:
                log.append(("compile", code, options, backend))

            def get_function(self, name: str) -> Any:
                return lambda grid, block, args, shared_mem: log.append((name, grid, block, args, shared_mem))

        @contextmanager
        def entered(*what: Any) -> Any:
            log.append(what)
            yield

        def count() -> int:
            if devices < 0:
                raise FakeCudaError("cudaErrorInsufficientDriver")
            return devices

        runtime = SimpleNamespace(
            getDeviceCount=count,
            CUDARuntimeError=FakeCudaError,
            memoryTypeUnregistered=0,
            pointerGetAttributes=lambda address: SimpleNamespace(type=int(address in self.pinned)),
        )
        cuda = SimpleNamespace(
            runtime=runtime,
            Device=lambda *number: entered("device", *number) if number else self.current,
            Stream=SimpleNamespace(from_external=lambda stream: entered("stream", *stream.__cuda_stream__())),
        )
        self.pinned: set[int] = set()
        self.current = SimpleNamespace(synchronize=lambda: log.append("wait"))
        super().__init__(log=log, ndarray=FakeArray, RawModule=RawModule, cuda=cuda, from_dlpack=share or self.share)

    @staticmethod
    def share(tensor: FakeTensor) -> FakeArray:
        return FakeArray(tensor.device.index, contiguous=tensor.contiguous, source=tensor)


class FakeTensor:
    def __init__(self, dtype: str = "float32", *, index: int = 0, cuda: bool = True, contiguous: bool = True) -> None:
        self.dtype, self.is_cuda, self.contiguous = dtype, cuda, contiguous
        self.device = SimpleNamespace(index=index, __str__=lambda: "cpu")

    def detach(self) -> FakeTensor:
        return self

    def view(self, dtype: str) -> FakeTensor:
        return FakeTensor(dtype, index=self.device.index)


@pytest.fixture
def torch(monkeypatch):
    fake = SimpleNamespace(Tensor=FakeTensor, bfloat16="bfloat16", int16="int16", from_dlpack=lambda a: ("tensor", a))
    fake.cuda = SimpleNamespace(current_stream=lambda number: SimpleNamespace(cuda_stream=1000 + number))
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_everything_can_be_imported_without_cupy_and_calling_says_what_to_install():
    script = """
import sys
sys.modules["cupy"] = None
import numpy as np
from foreshard import kernels
from foreshard.topologies.errors import MissingDependencyError
ids, rows = np.zeros(1, np.int64), np.zeros((1, 4), np.float32)
calls = [lambda: kernels.table_group([rows]), lambda: kernels.encode(rows, "int8"),
         lambda: kernels.decode(rows, "int8"), lambda: kernels.deduplicate(ids),
         lambda: kernels.bucketise(ids, 2), lambda: kernels.RowCache(rows, 1),
         lambda: kernels.find_owners([], ids, ids), lambda: kernels.pinned_rows((1, 1), "float32")]
for call in calls:
    try:
        call()
    except MissingDependencyError as error:
        assert "foreshard[gpu]" in str(error) and "foreshard[gpu-cuda13]" in str(error), error
    else:
        raise SystemExit("no error")
print(len(calls))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr


@pytest.mark.parametrize(("devices", "message"), [(0, "sees no CUDA device"), (-1, "cudaErrorInsufficientDriver")])
def test_cupy_without_a_gpu_points_to_the_reference(devices, message):
    with pytest.raises(ForeshardError, match=f"{message}(.|\n)*reference"):
        CupyDevice(FakeCupy(devices))


def test_the_device_is_made_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
    cupy_device.cache_clear()
    try:
        assert cupy_device() is cupy_device()
    finally:
        cupy_device.cache_clear()


def test_a_file_is_compiled_at_the_first_launch_of_any_of_its_kernels_and_only_then():
    cupy = FakeCupy()
    device, array = CupyDevice(cupy), FakeArray()
    assert cupy.log == []
    for kernel in ("mark_heads", "place_segments", "mark_heads"):
        device.launch(kernel, 7, (array, None, np.int64(3)), threads=64, shared_bytes=256)
    compiled = ("compile", source_text("segments.cu"), OPTIONS, "nvrtc")
    call = ((7,), (64,), (array, np.uint64(0), np.int64(3)), 256)
    assert cupy.log == [compiled, ("mark_heads", *call), ("place_segments", *call), ("mark_heads", *call)]
    assert isinstance(cupy.log[1][3][1], np.uint64), "None is the null pointer, of 8 bytes"


def test_every_kernel_lies_in_one_file_and_no_source_includes_another():
    names = [name for kernels in KERNELS.values() for name in kernels]
    assert len(names) == len(set(names))
    assert all(name in KERNELS[file_of(name)] for name in names)
    assert not [file for file in KERNELS if "#include" in source_text(file) or "#pragma once" in source_text(file)]


def test_arrays_of_cupy_are_taken_as_they_are_and_others_refused():
    device, array = CupyDevice(FakeCupy()), FakeArray()
    assert device.take(array, "ids") is array
    with pytest.raises(InputError, match=r"ids is a numpy.ndarray: expected a CuPy array or a torch CUDA tensor"):
        device.take(np.zeros(3), "ids")
    with pytest.raises(InputError, match=r"ids \(2, 2\) is not contiguous"):
        device.take(FakeArray(contiguous=False), "ids")


def test_torch_cuda_tensors_are_shared_by_dlpack_and_results_given_back_as_tensors(torch):
    device, tensor = CupyDevice(FakeCupy()), FakeTensor()
    taken = device.take(tensor, "ids")
    assert taken.source is tensor
    assert device.give(taken, tensor) == ("tensor", taken)
    assert device.give(taken, FakeArray()) is taken


def test_bf16_tensors_travel_as_the_bits_of_uint16(torch):
    taken = CupyDevice(FakeCupy()).take(FakeTensor("bfloat16"), "table 0")
    assert taken.source.dtype == "int16"
    assert taken.dtype == np.uint16


@pytest.mark.parametrize("error", [BufferError, TypeError, NotImplementedError, RuntimeError])
def test_torch_tensors_that_cannot_be_shared_are_named(torch, error):
    def share(tensor):
        raise error("no such dtype")

    with pytest.raises(InputError, match=r"ids is a torch tensor of float8 that CuPy cannot share \(no such dtype\)"):
        CupyDevice(FakeCupy(share=share)).take(FakeTensor("float8"), "ids")


def test_torch_tensors_on_the_host_or_not_contiguous_are_refused(torch):
    device = CupyDevice(FakeCupy())
    with pytest.raises(InputError, match=r"ids is a torch tensor on .*expected a CUDA tensor, move it with .cuda()"):
        device.take(FakeTensor(cuda=False), "ids")
    with pytest.raises(InputError, match="not contiguous"):
        device.take(FakeTensor(contiguous=False), "ids")


def test_work_runs_on_the_arrays_device_and_on_torchs_stream_if_a_tensor_is_among_them(torch):
    cupy = FakeCupy(3)
    device = CupyDevice(cupy)
    with device.on(FakeArray(2), None, np.zeros(1)):
        assert cupy.log == [("device", 2)]
    with device.on(FakeArray(1), FakeTensor(index=1)):
        assert cupy.log[1:] == [("device", 1), ("stream", 0, 1001)]
    with pytest.raises(InputError, match=r"CUDA devices \[0, 2\]: expected all on one"):
        device.on(FakeArray(2), FakeTensor(index=0))


def test_addresses_are_those_of_device_memory_or_of_pinned_host_memory():
    device, host = CupyDevice(FakeCupy()), np.zeros(3)
    assert device.address(FakeArray()) == 4096
    assert device.address(host) == host.ctypes.data


def test_host_memory_is_reached_where_it_is_pinned():
    cupy, host = FakeCupy(), np.zeros(3)
    device = CupyDevice(cupy)
    assert device.reaches(FakeArray())
    assert device.reaches(host[:0])
    assert not device.reaches(host)
    cupy.pinned.add(host.ctypes.data)
    assert device.reaches(host)


def test_synchronising_waits_for_the_current_device():
    cupy = FakeCupy()
    CupyDevice(cupy).synchronize()
    assert cupy.log == ["wait"]


@pytest.mark.slow
def test_the_gpu_tests_pass_with_numpy_for_cupy_and_the_shim_for_the_gpu():
    """So the tests of tests/gpu, which only GPUs run, and the wrappers over CupyDevice are known to work."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here: kernels cannot be compiled for the CPU")
    some = "routing or codecs or adagrad or pinned or outside or (sequences and float16 and not 102)"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "fake_cupy",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-k",
        some,
    ]
    done = subprocess.run(
        [*command, str(HERE.parent / "gpu")],
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONPATH": str(HERE / "shim")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def test_every_public_name_is_documented():
    for name in foreshard.kernels.__all__:
        assert getattr(foreshard.kernels, name).__doc__


def test_a_cupy_that_cannot_be_imported_or_is_too_old_is_told_apart_from_none(monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text("raise ImportError('libnvrtc.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    cupy_device.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"is installed but cannot be imported: libnvrtc\.so\.12"):
        cupy_device()
    old = SimpleNamespace(__version__="13.6.0", cuda=SimpleNamespace(Stream=object))
    monkeypatch.setitem(sys.modules, "cupy", old)
    with pytest.raises(MissingDependencyError, match=r"CuPy 13\.6\.0 is installed: expected 14 or newer"):
        cupy_device()


def test_the_missing_dependency_is_an_import_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    cupy_device.cache_clear()
    with pytest.raises(MissingDependencyError):
        cupy_device()
    assert issubclass(MissingDependencyError, ImportError)

"""The real CuPy where it is installed, with a GPU or without: it has what is called, and compiles the sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import foreshard.kernels
from foreshard.kernels.cupy_device import _TorchStream
from foreshard.kernels.sources import KERNELS, OPTIONS, source_text

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install 'foreshard[gpu]'")

SOURCES = sorted(Path(foreshard.kernels.__file__).parent.glob("*.py"))
NAME = re.compile(r"\bxp\.((?:\w+\.)*\w+)")
OF_CUDA = ("Device", "Event", "Stream.from_external", "get_elapsed_time", "alloc_pinned_memory")
OF_RUNTIME = ("CUDARuntimeError", "getDeviceCount", "memoryTypeUnregistered", "pointerGetAttributes")


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_every_name_of_cupy_that_the_wrappers_use_exists(file):
    names = {*NAME.findall(file.read_text()), *(f"cuda.{name}" for name in OF_CUDA)}
    for name in names | {f"cuda.runtime.{name}" for name in OF_RUNTIME}:
        found = cupy
        for part in name.split("."):
            found = getattr(found, part)


def test_a_stream_of_torch_is_taken_by_its_address():
    assert cupy.cuda.Stream.from_external(_TorchStream(0)).ptr == 0


@pytest.mark.slow
@pytest.mark.parametrize("file", KERNELS)
def test_cupys_own_compiler_makes_every_kernel(file, monkeypatch):
    """As RawModule compiles them, less the question for the device's architecture."""
    compiler = pytest.importorskip("cupy.cuda.compiler")
    cupy.RawModule(code=source_text(file), options=OPTIONS, backend="nvrtc")
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch: (f"-arch=sm_{arch}", "cubin"))
    cubin, _ = compiler.compile_using_nvrtc(source_text(file), (*OPTIONS, "-ftz=true"), "90", file)
    assert all(f".text.{kernel}".encode() in cubin for kernel in KERNELS[file])

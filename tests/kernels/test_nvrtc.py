"""Every CUDA source compiles through NVRTC for real architectures, as CuPy would compile it, and spills no register.

NVRTC needs no GPU. Told a real architecture it runs ptxas too, and its log then tells each kernel's registers, stack
and spills. Its oldest architecture here, sm_70, ends with CUDA 12.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from foreshard.kernels.sources import KERNELS, OPTIONS, source_text

ARCHITECTURES = ("sm_70", "sm_80", "sm_90", "sm_100")
# What CuPy appends to the options it is given (cupy/cuda/compiler.py, 14.2).
CUPY = ("-ftz=true", "--device-as-default-execution-space")
ENTRY = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill "
    r"stores, (?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


def library() -> Path | None:
    """The NVRTC of the package nvidia-cuda-nvrtc-cu12, if it is installed."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return next((path for folder in folders for path in Path(folder).glob("lib/libnvrtc.so.*")), None)


@pytest.fixture(scope="session")
def nvrtc() -> ctypes.CDLL:
    path = library()
    if path is None:
        pytest.skip("nvidia-cuda-nvrtc-cu12 is not installed (Linux on x86_64 only): kernels cannot be compiled")
    return ctypes.CDLL(str(path))


def text_of(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, buffer) == 0
    return buffer.raw


def compile_source(nvrtc: ctypes.CDLL, text: str, *options: str) -> tuple[bool, str, ctypes.c_void_p]:
    """Return (whether it compiled, the log, the program)."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None) == 0
    choices = [option.encode() for option in (*OPTIONS, *CUPY, *options)]
    failed = nvrtc.nvrtcCompileProgram(program, len(choices), (ctypes.c_char_p * len(choices))(*choices))
    return not failed, text_of(nvrtc, program, "ProgramLog").decode().rstrip("\0"), program


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file", KERNELS)
def test_every_kernel_compiles_without_warnings_and_spills_nothing(nvrtc, file, architecture):
    compiled, log, _ = compile_source(
        nvrtc, source_text(file), f"--gpu-architecture={architecture}", "--ptxas-options=-v"
    )
    assert compiled, log
    complaints = [line for line in log.splitlines() if "warning" in line and "are deprecated" not in line]
    assert not complaints
    entries = {found["kernel"]: found for found in ENTRY.finditer(log)}
    assert set(entries) == set(KERNELS[file]), "sources.KERNELS names the kernels of a file, all of them"
    spilled = {
        name: found.groupdict() for name, found in entries.items() if int(found["stores"]) or int(found["loads"])
    }
    assert not spilled
    assert all(int(found["stack"]) == 0 for found in entries.values())
    assert all(int(found["registers"]) <= 128 for found in entries.values()), "four blocks of 128 threads must fit"


def test_a_kernel_that_spills_is_found_out(nvrtc):
    """The check above can fail: the same compiler and parser, a kernel whose array has to live in memory."""
    text = """extern "C" __global__ void __launch_bounds__(1024) greedy(const float* in, float* out, int n) {
        float kept[200];
        for (int i = 0; i < 200; ++i) kept[i] = in[i * n];
        for (int i = 0; i < 200; ++i) for (int k = 0; k < 200; ++k) kept[i] += kept[(i * 7 + k) % 200];
        for (int i = 0; i < 200; ++i) out[i * n] = kept[i];
    }"""
    compiled, log, _ = compile_source(nvrtc, text, "--gpu-architecture=sm_90", "--ptxas-options=-v")
    assert compiled, log
    assert int(ENTRY.search(log)["stack"]) > 0


@pytest.mark.parametrize(
    ("file", "kernel"),
    [
        ("lookup.cu", "pooled_lookup_fp32_i64"),
        ("lookup.cu", "pooled_lookup_bf16_i64"),
        ("lookup.cu", "sequence_lookup_fp16_i32"),
        ("update.cu", "update_rows_fp32"),
        ("tiers.cu", "copy_rows"),
    ],
)
def test_aligned_rows_are_read_and_written_16_bytes_at_once(nvrtc, file, kernel):
    compiled, log, program = compile_source(nvrtc, source_text(file), "--gpu-architecture=compute_80")
    assert compiled, log
    ptx = text_of(nvrtc, program, "PTX").decode()
    body = ptx[ptx.index(f".entry {kernel}(") :]
    body = body[: body.index("\n}")]
    wide = r"(v4\.(f32|u32|b32)|v2\.(u64|b64|f64))"
    assert re.search(rf"ld\.(global\.)?(nc\.)?{wide}", body)
    assert re.search(rf"st\.(global\.)?{wide}", body)

"""The kernels on a CPU: their sources compiled as C++ against the shim, behind the device interface of the wrappers."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from foreshard.kernels import sources
from foreshard.topologies.errors import InputError

SHIM = Path(__file__).parent / "shim"
RUNTIME = ("cuda_shim.cpp", "races.cpp")
SANITIZE = "FORESHARD_SHIM_SANITIZE" in os.environ  # set by test_sanitizers.py, which runs these tests once more
FLAGS = ["-std=c++17", "-O1", "-g1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
FLAGS += ["-ffp-contract=off", "-fno-strict-aliasing", "-DFORESHARD_SHIM", f"-I{SHIM}"]
FLAGS += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if SANITIZE else []
# Calls of races.cpp before every access that a kernel makes to memory; g++ has these or the address sanitizer.
WATCH = ["-fsanitize=thread", "--param", "tsan-distinguish-volatile=1", "--param", "tsan-instrument-func-entry-exit=0"]
WATCH = [] if SANITIZE else WATCH

if SANITIZE:
    settings.register_profile("sanitized", settings.get_profile("foreshard"), max_examples=12)
    settings.load_profile("sanitized")


class Launch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("grid", "block", "shared_bytes", "reserved")),
        ("seed", ctypes.c_uint64),
    ]


def translation_units() -> dict[str, str]:
    """C++ text by file name: each kernel file with an exported launch of every kernel, the self-test, the runtime."""
    units = {file: (sources.source_text(file), names) for file, names in sources.KERNELS.items()}
    selftest = (SHIM / "selftest.cu").read_text()
    units["selftest.cu"] = (
        selftest,
        tuple(line.split()[1].split("(")[0] for line in selftest.splitlines() if line.startswith("KERNEL ")),
    )
    texts = {
        file: f'#include "cuda_shim.h"\n{text}\n' + "".join(f"SHIM_EXPORT({name})\n" for name in names)
        for file, (text, names) in units.items()
    }
    return {**texts, **{file: (SHIM / file).read_text() for file in RUNTIME}}


def compile_shim() -> Path:
    """The shared library, compiled once for these sources and flags; later sessions find it in the temporary folder."""
    units = translation_units()
    headers = [(SHIM / file).read_text() for file in ("cuda_shim.h", "races.h")]
    parts = (*units.values(), *headers, *FLAGS, *WATCH)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"foreshard-shim-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{key}.so"
    with (folder / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            build(units, library)
    return library


def build(units: dict[str, str], library: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        for file, text in units.items():
            (Path(scratch) / file).write_text(text)
        list(pool.map(lambda file: compile_unit(file, scratch), units))
        gxx("-shared", *(f"{file}.o" for file in units), "-o", "shim.so", folder=scratch)
        shutil.move(Path(scratch) / "shim.so", library)


def compile_unit(file: str, folder: str) -> None:
    gxx("-x", "c++", *([] if file in RUNTIME else WATCH), "-c", file, "-o", f"{file}.o", folder=folder)


def gxx(*arguments: str, folder: str) -> None:
    done = subprocess.run(["g++", *FLAGS, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def shim() -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("no g++ here: kernels cannot be compiled for the CPU")
    return ctypes.CDLL(str(compile_shim()))


@pytest.fixture(scope="session")
def on_cpu(shim: ctypes.CDLL) -> Callable[..., ShimDevice]:
    """Makes devices that differ in how threads are scheduled, how many make a block, and how large a grid may be."""
    return lambda seed=0, threads=64, max_grid=3: ShimDevice(shim, seed, threads, max_grid)


class ShimDevice:
    """`kernels.device.Device` on NumPy arrays; grids are cut to `max_grid` blocks: threads take more turns."""

    xp = np

    def __init__(self, shim: ctypes.CDLL, seed: int, threads: int, max_grid: int) -> None:
        self.shim, self.seed, self.threads, self.max_grid = shim, seed, threads, max_grid

    def launch(self, kernel: str, grid: int, args: Sequence[Any], *, threads: int, shared_bytes: int = 0) -> None:
        types = self._entry(f"shim_signature_{kernel}")().decode().split()
        packed = [pack(arg, wanted, kernel) for arg, wanted in zip(args, types, strict=True)]
        config = Launch(min(grid, self.max_grid), threads, shared_bytes, 0, self.seed)
        addresses = (ctypes.c_void_p * len(packed))(*(value.ctypes.data for value in packed))
        error = self._entry(f"shim_launch_{kernel}")(ctypes.byref(config), addresses)
        if error:
            raise AssertionError(f"{kernel}: {error.decode()}")

    def _entry(self, name: str) -> Any:
        entry = getattr(self.shim, name)
        entry.restype = ctypes.c_char_p
        return entry

    def take(self, given: object, what: str) -> Any:
        if not isinstance(given, np.ndarray):
            raise InputError(f"{what} is a {type(given).__name__}: expected a NumPy array")
        assert given.flags.c_contiguous
        return given

    def give(self, result: Any, like: object) -> Any:
        return result

    def on(self, *given: object) -> AbstractContextManager[Any]:
        return nullcontext()

    def upload(self, host: np.ndarray[Any, Any]) -> Any:
        return host.copy().view(np.uint8) if host.dtype.names else host.copy()

    def stable_argsort(self, keys: Any) -> Any:
        return np.argsort(keys, kind="stable")

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def reaches(self, array: Any) -> bool:
        return True

    def synchronize(self) -> None:
        pass


CODES = {"float32": "f32", "float16": "u16", "uint16": "u16", "uint8": "u8", "int32": "i32", "uint32": "u32"}
CODES |= {"int64": "i64", "uint64": "u64"}


def pack(arg: Any, wanted: str, kernel: str) -> np.ndarray[Any, Any]:
    """One argument as memory that holds its value, after a check that its type is the parameter's."""
    if arg is None or isinstance(arg, np.ndarray):
        given = "any*" if arg is None else CODES[str(arg.dtype)] + "*"
        assert wanted in (given, "any*") or (arg is None and wanted.endswith("*")), f"{kernel}: {given} for {wanted}"
        return np.array([0 if arg is None else arg.ctypes.data], dtype=np.uint64)
    given = CODES[str(arg.dtype)]
    assert given == wanted or (given == "u64" and wanted.endswith("*")), f"{kernel}: {given} for {wanted}"
    return np.array([arg])

"""The kernels' logic once more, compiled with the address and undefined-behaviour sanitizers, in a process of its own.

NumPy's arrays come from the sanitizer's allocator there: a kernel that reads or writes one element outside its arrays
or its dynamic shared memory, loads a vector from an unaligned address, shifts or overflows where C++ forbids it, ends
the process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FILES = [f"test_{name}.py" for name in ("shim", "lookup_kernels", "update_kernels", "routing_kernels")]
FILES += ["test_codec_kernels.py", "test_tier_kernels.py"]


def runtime(name: str) -> str | None:
    """The sanitizer's library of this g++, or None."""
    if shutil.which("g++") is None:
        return None
    path = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return path if Path(path).is_absolute() else None


def run_sanitized(*arguments: str) -> subprocess.CompletedProcess[str]:
    libraries = [runtime("libasan.so"), runtime("libubsan.so"), runtime("libstdc++.so")]
    if os.environ.get("FORESHARD_SHIM_SANITIZE") or None in libraries:
        pytest.skip("no g++ with the address and undefined-behaviour sanitizers here")
    environment = {
        **os.environ,
        "FORESHARD_SHIM_SANITIZE": "1",
        "LD_PRELOAD": ":".join(str(path) for path in libraries),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-s", *arguments]
    return subprocess.run(
        command, cwd=FOLDER.parents[1], env=environment, capture_output=True, text=True, check=False, timeout=900
    )


@pytest.mark.slow
def test_all_kernel_tests_pass_under_the_address_and_undefined_behaviour_sanitizers():
    done = run_sanitized(*(str(FOLDER / file) for file in FILES))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "report"),
    [("reads_behind_the_end", "heap-buffer-overflow"), ("loads_unaligned", "misaligned address"),
     ("overruns_shared_memory", "heap-buffer-overflow")],
)  # fmt: skip
def test_the_sanitizers_see_a_wrong_kernel(kernel, report):
    done = run_sanitized(str(FOLDER / "shim" / "wrong_kernels.py"), "-k", kernel)
    assert done.returncode != 0
    assert report in done.stdout + done.stderr

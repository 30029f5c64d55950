"""The CUDA sources: which kernel lies in which file, their text for a compiler, and the options it needs."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

__all__ = ["KERNELS", "OPTIONS", "file_of", "source_text"]

_FOLDER = Path(__file__).parent
_ROWS = ("fp32", "fp16", "bf16")
_IDS = ("i32", "i64")

# Without contraction into fused multiply-adds fp32 results are those of the NumPy reference, bit for bit; all kernels
# wait for memory, so that the extra instruction costs nothing. CuPy appends -ftz=true to the options of any RawModule
# (cupy/cuda/compiler.py, 14.2), so on a GPU arithmetic takes and gives zero for fp32 values below 1.2e-38.
OPTIONS = ("--std=c++17", "--fmad=false")


def _names(stem: str, *suffixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("_".join((stem, *chosen)) for chosen in product(*suffixes))


KERNELS: dict[str, tuple[str, ...]] = {
    "lookup.cu": (
        *_names("pooled_lookup", _ROWS, _IDS),
        *_names("sequence_lookup", _ROWS, _IDS),
        *_names("tiered_lookup", _ROWS),
    ),
    "segments.cu": (
        *_names("look_up_keys", _IDS),
        "pack_keys",
        "mark_heads",
        "place_segments",
        *_names("check_ids", _IDS),
    ),
    "update.cu": ("reserve_chunks", "sum_chunks", "sum_rows", *_names("update_rows", _ROWS)),
    "routing.cu": (*_names("find_owners", _IDS), "hash_parts", "count_tiles", "place_tiles", "invert"),
    "codecs.cu": tuple(
        f"{way}_{codec}" for way in ("encode", "decode") for codec in ("fp16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2")
    ),
    "tiers.cu": ("query_cache", "insert_into_cache", "copy_rows"),
}


@cache
def file_of(kernel: str) -> str:
    """The .cu file that holds `kernel`."""
    return next(file for file, names in KERNELS.items() if kernel in names)


@cache
def source_text(file: str) -> str:
    """The text of one .cu file with the header it includes put in: it compiles on its own, from memory."""
    header = (_FOLDER / "common.cuh").read_text().replace("#pragma once\n", "")
    return (_FOLDER / file).read_text().replace('#include "common.cuh"\n', header)

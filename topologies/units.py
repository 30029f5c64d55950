"""Units: files carry them as strings, code carries plain floats in bytes, seconds, bytes/s and FLOP/s.

GB is 1e9 and GiB is 2**30, always. Bandwidth is per direction. `Gb/s` is refused: it is read as gigabits by
some and as gigabytes by others.
"""

from __future__ import annotations

import math
import re

from foreshard.topologies.errors import UnitError

__all__ = [
    "BYTES",
    "BYTES_PER_S",
    "FLOPS",
    "SECONDS",
    "format_bandwidth",
    "format_bytes",
    "format_ms",
    "format_us",
    "parse_quantity",
]

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

BYTES: dict[str, float] = {f"{prefix}B": scale for prefix, scale in {**_DECIMAL, **_BINARY}.items()}
BYTES_PER_S: dict[str, float] = {
    **{f"{unit}/s": scale for unit, scale in BYTES.items()},
    **{f"{prefix}bit/s": scale / 8 for prefix, scale in _DECIMAL.items()},
}
SECONDS: dict[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
FLOPS: dict[str, float] = {f"{prefix}FLOP/s": scale for prefix, scale in _DECIMAL.items()}

_EXAMPLES = {
    id(BYTES): "bytes such as '80 GiB', '512 MiB' or '640 GB'",
    id(BYTES_PER_S): "a bandwidth such as '450 GB/s', '400 Gbit/s' or '12.5 GiB/s'",
    id(SECONDS): "a time such as '12 us', '1.5 ms' or '2 s'",
    id(FLOPS): "a rate such as '990 TFLOP/s'",
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*\Z")


def parse_quantity(text: object, units: dict[str, float]) -> float:
    """Return `text`, such as "450 GB/s", in the base unit of `units` (one of BYTES, BYTES_PER_S, SECONDS, FLOPS).

    Raises UnitError for a bare number, an unknown or ambiguous unit, a negative or a non-finite value.
    """
    wanted = _EXAMPLES[id(units)]
    if not isinstance(text, str):
        raise UnitError(f"{text!r} has no unit: write {wanted}, in quotes")
    match = _QUANTITY.match(text)
    if match is None:
        raise UnitError(f"{text!r} is not a number with a unit: write {wanted}")
    number, unit = match.groups()
    if unit not in units:
        if re.fullmatch(r"[kKMGTP]b/s|[kKMGTP]bps|[kKMGTP]b", unit):
            raise UnitError(f"{text!r} is ambiguous (bits or bytes?): write {wanted}")
        raise UnitError(f"{text!r} has {'no unit' if not unit else f'the unknown unit {unit!r}'}: write {wanted}")
    value = float(number) * units[unit]
    if not math.isfinite(value) or value < 0:
        raise UnitError(f"{text!r} must be a finite value, not negative: write {wanted}")
    return value


def format_bytes(nbytes: float) -> str:
    """Return bytes in binary units, as "79.1 GiB"."""
    for unit, scale in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if abs(nbytes) >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} B"


def format_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth in decimal units, as "450.0 GB/s"."""
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.1f} MB/s"


def format_us(seconds: float) -> str:
    """Return a time in microseconds, as "12.3 us"."""
    return f"{seconds * 1e6:.1f} us"


def format_ms(seconds: float) -> str:
    """Return a time in milliseconds, as "7.012 ms"."""
    return f"{seconds * 1e3:.3f} ms"

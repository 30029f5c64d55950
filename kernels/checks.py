"""Checks of arrays that a wrapper was given: every mistake is collected, then one InputError names them all."""

from __future__ import annotations

from typing import Any

from foreshard.topologies.errors import InputError

__all__ = ["Problems", "dtype_name", "id_suffix"]


def dtype_name(array: Any) -> str:
    """The dtype's name, such as "float32"."""
    return str(array.dtype)


def _shown(dtype: str) -> str:
    return "uint16 (the bits of bfloat16)" if dtype == "uint16" else dtype


def id_suffix(array: Any) -> str:
    """The suffix of kernels for ids of this dtype: "i32" or "i64"."""
    return "i32" if dtype_name(array) == "int32" else "i64"


class Problems:
    """Mistakes found so far in what was given for `where`."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: list[str] = []

    def unless(self, holds: bool, message: str) -> None:
        """Note `message` where a condition does not hold."""
        if not holds:
            self.found.append(message)

    def dtype(self, array: Any, what: str, allowed: tuple[str, ...]) -> None:
        """Note an array whose dtype is none of `allowed`."""
        given, wanted = dtype_name(array), " or ".join(map(_shown, allowed))
        self.unless(given in allowed, f"{what} has dtype {_shown(given)}: expected {wanted}")

    def shape(self, array: Any, what: str, wanted: str, holds: bool) -> None:
        """Note an array of another shape than `wanted`."""
        self.unless(holds, f"{what} has shape {list(array.shape)}: expected {wanted}")

    def within(self, array: Any, what: str, low: int, high: int) -> None:
        """Note an array with a value outside `low` to `high`; waits for the device."""
        if array.size:
            lowest, highest = int(array.min()), int(array.max())
            message = f"{what} run from {lowest} to {highest}: expected {low} to {high}"
            self.unless(low <= lowest and highest <= high, message)

    def raise_any(self) -> None:
        """Raise InputError with all that was noted, if anything was."""
        if self.found:
            raise InputError(self.found, where=self.where)

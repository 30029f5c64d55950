"""Checks of arrays that a wrapper was given: every mistake is collected, then one InputError names them all."""

from __future__ import annotations

from typing import Any

from foreshard.topologies.errors import InputError

__all__ = ["Problems", "dtype_name", "id_suffix"]


def dtype_name(array: Any) -> str:
    """The dtype's name, such as "float32"."""
    return str(array.dtype)


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
        wanted = " or ".join(allowed)
        self.unless(dtype_name(array) in allowed, f"{what} has dtype {dtype_name(array)}: expected {wanted}")

    def shape(self, array: Any, what: str, wanted: str, holds: bool) -> None:
        """Note an array of another shape than `wanted`."""
        self.unless(holds, f"{what} has shape {list(array.shape)}: expected {wanted}")

    def raise_any(self) -> None:
        """Raise InputError with all that was noted, if anything was."""
        if self.found:
            raise InputError(self.found, where=self.where)

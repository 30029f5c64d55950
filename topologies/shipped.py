"""The texts that come with foreshard: one TOML file a machine, and the catalogue of GPUs and links they name."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from foreshard.topologies.errors import InputError
from foreshard.topologies.fields import near

__all__ = ["parts", "preset_names", "preset_text"]

_FOLDER = files("foreshard.topologies") / "machines"
_PARTS = "_parts.toml"


@cache
def preset_names() -> tuple[str, ...]:
    """Names of all shipped machines, sorted."""
    names = (item.name for item in _FOLDER.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml") and not n.startswith("_")))


def preset_text(name: str) -> str:
    """TOML text of a shipped machine. Raises InputError naming the nearest ones if there is none of that name."""
    if name not in preset_names():
        raise InputError(f"there is no machine {name!r}; {near(name, preset_names())}")
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


@cache
def parts(kind: str) -> dict[str, Any]:
    """Tables of the catalogue by name: `kind` is "gpu", "cpu" (one core) or "link"."""
    tables: dict[str, Any] = tomllib.loads((_FOLDER / _PARTS).read_text(encoding="utf-8"))[kind]
    return tables

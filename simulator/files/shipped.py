"""What foreshard ships: table sets and scenarios, read from the installed package wherever it lies."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Literal

__all__ = ["Kind", "shipped_folder", "shipped_names", "shipped_text"]

Kind = Literal["tables", "scenarios"]


def shipped_names(kind: Kind) -> tuple[str, ...]:
    """Names of the shipped table sets or scenarios, in alphabetical order."""
    entries = (entry.name for entry in files("foreshard.simulator").joinpath(kind).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml")))


def shipped_folder(kind: Kind) -> Path:
    """Folder of the shipped files of a kind, which name others beside them."""
    return Path(str(files("foreshard.simulator").joinpath(kind)))


def shipped_text(kind: Kind, name: str) -> str:
    """TOML text of the shipped table set or scenario of that name; raises KeyError for a name not shipped."""
    if name not in shipped_names(kind):
        raise KeyError(name)
    return files("foreshard.simulator").joinpath(kind, f"{name}.toml").read_text(encoding="utf-8")

"""What a wheel holds: every folder and every data file of every room is named in pyproject.toml."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SETUP: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def folders() -> dict[str, Path]:
    """Folders of all rooms that hold files, by their package name."""
    found = {}
    for name, room in SETUP["package-dir"].items():
        for folder in (ROOT / room, *(path for path in (ROOT / room).rglob("*") if path.is_dir())):
            inside = folder.relative_to(ROOT / room).parts
            if "__pycache__" not in inside and any(path.is_file() for path in folder.iterdir()):
                found[".".join((name, *inside))] = folder
    return found


def test_every_folder_is_listed_so_that_setuptools_ships_it_without_a_warning() -> None:
    assert set(SETUP["packages"]) == set(folders())


def test_every_data_file_matches_a_pattern_of_its_folder() -> None:
    for package, folder in folders().items():
        patterns = SETUP["package-data"].get(package, []) + SETUP["package-data"]["*"]
        for path in folder.iterdir():
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                assert any(fnmatchcase(path.name, pattern) for pattern in patterns), path

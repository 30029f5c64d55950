"""Finished rows of a sweep on disk, so that a long grid goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import math
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from foreshard.simulator.files.document import to_document
from foreshard.simulator.job.scenario import Scenario
from foreshard.topologies.errors import InputError
from foreshard.topologies.output import check_writable

__all__ = ["MEASURED", "RowStore", "inputs_sha256", "store_beside"]

Measures = dict[str, Any]
MEASURED = ("ranks", "step_time_s", "samples_per_s", "all_to_all_s", "memory_fits", "memory_peak_bytes")


def store_beside(result: Path) -> Path:
    """The file of finished rows that belongs to a result file: "grid.csv" has "grid.csv.rows.jsonl"."""
    return result.with_name(result.name + ".rows.jsonl")


def inputs_sha256(scenario: Scenario) -> str:
    """Hash of everything a prediction depends on: the scenario, its cluster file, and foreshard's code and data."""
    digest = hashlib.sha256(_code_sha256().encode())
    digest.update(json.dumps(to_document(scenario), sort_keys=True).encode())
    if scenario.cluster.file is not None:
        digest.update(Path(scenario.cluster.file).read_bytes())
    return digest.hexdigest()


@cache
def _code_sha256() -> str:
    digest = hashlib.sha256()
    for package in ("foreshard.topologies", "foreshard.simulator"):
        for name, path in sorted(_files(files(package), package)):
            digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


def _files(folder: Traversable, name: str) -> list[tuple[str, Traversable]]:
    found = []
    for item in folder.iterdir():
        inner = f"{name}/{item.name}"
        if item.is_dir():
            found += _files(item, inner)
        elif item.name.endswith((".py", ".toml")):
            found.append((inner, item))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InputError(f"{path}: finished rows cannot be read: {error.strerror or error}") from None


def _is_whole(measures: Measures) -> bool:
    """Whether nothing is missing or impossible in what a file says of a row."""
    numbers = [measures.get(name) for name in MEASURED]
    if not all(isinstance(value, int | float) and math.isfinite(value) and value >= 0 for value in numbers):
        return False
    return all(measures[name] > 0 for name in ("ranks", "step_time_s", "samples_per_s"))


class RowStore:
    """Measures by the hash of their inputs, one JSON object a line; without a path nothing is kept.

    Lines that are damaged (a run was killed while writing) or lack a measure are passed over. Raises InputError for a
    path that cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        if path is not None:
            check_writable(path)
            text = _text(path)
            for line in text.splitlines():
                self._take(line)
            if text and not text.endswith("\n"):
                self._write("\n")  # close a torn line, so that the next one is whole

    def _take(self, line: str) -> None:
        try:
            entry = json.loads(line)
            inputs, measures = entry["inputs"], dict(entry["measures"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if isinstance(inputs, str) and _is_whole(measures):
            self._known[inputs] = measures

    def get(self, inputs: str) -> dict[str, Any] | None:
        """The measures kept for these inputs, or None."""
        return self._known.get(inputs)

    def put(self, inputs: str, measures: dict[str, Any]) -> None:
        """Keep the measures of these inputs, at once."""
        self._known[inputs] = measures
        self._write(json.dumps({"inputs": inputs, "measures": measures}) + "\n")

    def _write(self, text: str) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as out:
                out.write(text)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"{self._path}: finished rows cannot be kept: {reason}") from None

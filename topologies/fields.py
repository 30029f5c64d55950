"""Reading tables of a file field by field: every mistake is noted with its path, none stops the reading."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from foreshard.topologies.errors import UnitError
from foreshard.topologies.units import parse_quantity

__all__ = ["REQUIRED", "Fields", "near"]


class _Required:
    """Marks a field that must be given."""


REQUIRED = _Required()


def near(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the known words that hold `word` or are like it, or the first few if none is."""
    names = sorted(known)
    holding = [name for name in names if word and word.lower() in name.lower()]
    close = holding[:3] or difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"known: {', '.join(names[:16])}{', ...' if len(names) > 16 else ''}" if names else "there are none"


class Fields:
    """One table of a file; reading a field that is wrong notes a problem and returns a stand-in.

    Call `finish` after the last read: it notes unknown keys. `problems` is shared with all tables below. Where
    something else stands in place of the table, that alone is noted. `wrong` tells whether a key has a problem, so
    that what depends on its value is not held against the stand-in.
    """

    def __init__(self, table: object, path: str = "", problems: list[str] | None = None) -> None:
        self.problems: list[str] = [] if problems is None else problems
        self.path = path
        self._known: set[str] = set()
        self._wrong: set[str] = set()
        self._table: dict[str, Any] = table if isinstance(table, dict) else {}
        self._is_table = True
        if not isinstance(table, dict):
            self.note("", f"{table!r} is not a table: write keys with values here")
            self._is_table = False

    def __iter__(self) -> Iterator[str]:
        """All keys of the table."""
        return iter(tuple(self._table))

    def note(self, key: str, message: str) -> None:
        """Note a problem with a key of this table."""
        if not self._is_table:
            return
        self._wrong.add(key.partition("[")[0])
        where = ".".join(part for part in (self.path, key) if part)
        self.problems.append(f"{where}: {message}" if where else message)

    def wrong(self, *keys: str) -> bool:
        """Whether a problem was noted with any of these keys, or something else stands in place of the table."""
        return not self._is_table or any(key in self._wrong for key in keys)

    def has(self, key: str) -> bool:
        """Whether the table has a key; it counts as known from now on."""
        self._known.add(key)
        return key in self._table

    def raw(self, key: str) -> Any:
        """The value of a key as it stands in the file, None if it is absent."""
        self._known.add(key)
        return self._table.get(key)

    def _get(self, key: str, default: object, kinds: tuple[type, ...], expected: str) -> Any:
        self._known.add(key)
        if key not in self._table:
            if isinstance(default, _Required):
                self.note(key, f"is missing: give {expected}")
                return None
            return default
        value = self._table[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.note(key, f"{value!r} is not {expected}")
            return None
        return value

    def text(self, key: str, default: str | _Required = REQUIRED) -> str:
        """A string that is not empty."""
        value = self._get(key, default, (str,), "a text in quotes")
        if value == "" and default != "":
            self.note(key, "is empty: give a text")
        if value and not value.replace("\n", "").replace("\t", "").isprintable():
            self.note(key, f"{value!r} holds a character that does not print: give a plain text")
            return ""
        return value or ""

    def choice(self, key: str, choices: Sequence[str], default: str | _Required = REQUIRED) -> Any:
        """A string that is one of `choices`; the first one stands in for a wrong one."""
        value = self._get(key, default, (str,), f"one of {', '.join(choices)}")
        if value is not None and value not in choices:
            self.note(key, f"{value!r} is not one of {', '.join(choices)}; {near(value, choices)}")
            value = None
        return choices[0] if value is None else value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return bool(self._get(key, default, (bool,), "true or false"))

    def integer(self, key: str, default: int | _Required = REQUIRED, minimum: int = 1, maximum: int = 1 << 20) -> int:
        """A whole number between the bounds."""
        value = self._get(key, default, (int,), f"a whole number from {minimum}")
        if value is not None and not minimum <= value <= maximum:
            self.note(key, f"{value} is out of range: give a whole number from {minimum} to {maximum}")
            value = None
        return minimum if value is None else int(value)

    def number(
        self, key: str, default: float | _Required = REQUIRED, minimum: float = -math.inf, maximum: float = math.inf
    ) -> float:
        """A finite number between the bounds."""
        value = self._get(key, default, (int, float), "a number")
        if value is not None and not (math.isfinite(value) and minimum <= value <= maximum):
            self.note(key, f"{value} is out of range: give a finite number from {minimum:g} to {maximum:g}")
            value = None
        return 1.0 if value is None else float(value)

    def quantity(self, key: str, units: dict[str, float], default: str | _Required = REQUIRED) -> float:
        """A quantity with its unit, in the base unit; 1.0 stands in for a wrong one."""
        self._known.add(key)
        text = self._table.get(key, default)
        if isinstance(text, _Required):
            self.note(key, "is missing: give a number with its unit, in quotes")
            return 1.0
        try:
            return parse_quantity(text, units)
        except UnitError as error:
            self.note(key, str(error))
            return 1.0

    def source(self, *numbers: str) -> str:
        """Where the numbers of these keys are from: one text for all of them, or a table with a text for each."""
        if not isinstance(self.raw("source"), dict):
            return self.text("source")
        table = Fields(self.raw("source"), self._path_of("source"), self.problems)
        texts = [f"{key}: {table.text(key)}" for key in numbers if key in self._table]
        table.finish()
        return "; ".join(texts)

    def table(self, key: str, required: bool = True) -> Fields | None:
        """A table below; None if it is absent."""
        if not self.has(key):
            if required:
                self.note(key, "is missing: give a table of this name")
            return None
        return Fields(self._table[key], self._path_of(key), self.problems)

    def tables(self, key: str) -> list[Fields]:
        """A list of tables below."""
        value = self._get(key, [], (list,), "a list of tables")
        path = self._path_of(key)
        return [Fields(item, f"{path}[{i}]", self.problems) for i, item in enumerate(value or [])]

    def values(self, key: str, default: Sequence[Any] | _Required = REQUIRED) -> list[Any]:
        """A list of values."""
        return list(self._get(key, default, (list,), "a list in [ ]") or [])

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings, empty if absent."""
        values = self.values(key, [])
        for index, value in enumerate(values):
            if not isinstance(value, str):
                self.note(f"{key}[{index}]", f"{value!r} is not a text in quotes")
        return tuple(str(value) for value in values)

    def _path_of(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def finish(self) -> None:
        """Note every key that nothing has read."""
        for key in self._table:
            if key not in self._known:
                self.note(str(key), f"unknown key; {near(str(key), self._known)}")

"""Chrome's trace format read event by event: memory is that of one event, however long the file."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from foreshard.topologies.errors import InputError

__all__ = ["EVENTS", "trace_entries"]

EVENTS = "traceEvents"
"""The key under which a trace has its events."""

_BLOCK = 1 << 20
_LONGEST = 1 << 26  # characters of one value; longer than any that Kineto writes
_NEAR_END = 16  # a literal, an escape or a delimiter that the end of what was read cuts lies within
# What is left of a value that the end of a file cuts: an escape, a literal, a number, or nothing.
_BEGUN = re.compile(r"u[0-9a-fA-F]{0,4}|t|tr|tru|f|fa|fal|fals|n|nu|nul|N|Na|-|-?I\w*|\.|[eE][-+]?|\s*")
_GOES_ON = re.compile(r"\d*\.?\d*([eE][-+]?\d*)?")  # what may follow a number that was read in part
_CUT = "the file ends within it: it is cut off"
_BLANK = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")


def trace_entries(content: BinaryIO, read: Callable[[int], object]) -> Iterator[tuple[str, Any]]:
    """Yield (EVENTS, event) for every event of a trace, and (key, value) for everything else at its top.

    `read` is told how many bytes were read. Raises InputError that names the first event that is no JSON, or is cut.
    """
    text = _Text(content, read)
    match text.next():
        case "{":
            yield from _members(text)
        case "[":  # events alone
            yield from ((EVENTS, event) for event in _items(text))
        case other:
            raise InputError(f"begins with {other!r}, but a trace begins with {{ or [")


def _members(text: _Text) -> Iterator[tuple[str, Any]]:
    text.take("{")
    while text.next() != "}":
        key = text.value("the key after the last value")
        if not isinstance(key, str):
            raise InputError(f"character {text.place}: {str(key)[:40]!r} stands where a key belongs")
        text.take(":")
        if key == EVENTS:
            yield from ((EVENTS, event) for event in _items(text))
        else:
            yield key, text.value(f"the value of {key!r}")
        text.comma("}")


def _items(text: _Text) -> Iterator[dict[str, Any]]:
    text.take("[")
    number = 0
    while text.next() != "]":
        event = text.value(f"event {number}")
        if not isinstance(event, dict):
            raise InputError(f"event {number}: expected an object, but it is {str(event)[:40]!r}")
        yield event
        text.comma("]", f"event {number}")
        number += 1
    text.take("]")


class _Text:
    """What was read of a file and not yet used up."""

    def __init__(self, content: BinaryIO, read: Callable[[int], object]) -> None:
        self._content = content
        self._read = read
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._json = json.JSONDecoder(strict=False)  # Kineto has written names with tabs in them
        self._text = ""
        self._at = 0
        self._before = 0  # characters used up before `_text`
        self._ended = False

    @property
    def place(self) -> int:
        """Characters before the next one."""
        return self._before + self._at

    def next(self) -> str:
        """The next character that is not blank, without using it up; "" at the end."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            self._at = blank.end() if blank else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def take(self, wanted: str) -> None:
        """Use up a character that must come next."""
        if self.next() != wanted:
            raise InputError(self._instead_of(f"{wanted!r}"))
        self._at += 1

    def comma(self, end: str, after: str = "") -> None:
        """Use up a comma, unless `end` comes next."""
        whole = _COMMA.match(self._text, self._at)
        if whole and whole.end() < len(self._text):
            self._at = whole.end()
            return
        found = self.next()
        if found == ",":
            self._at += 1
        elif found != end:
            raise InputError(f"after {after}: " * bool(after) + self._instead_of(f"',' or {end!r}"))

    def _instead_of(self, wanted: str) -> str:
        if not self.next():
            return f"the file ends where {wanted} belongs: it is cut off"
        return f"character {self.place}: {self.next()!r} stands where {wanted} belongs"

    def value(self, what: str) -> Any:
        """Use up one JSON value; raises InputError that names `what` it is if it cannot be read."""
        self.next()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if self._cut(error) and self._more():
                    continue
                raise InputError(f"{what}: {self._reason(error)}") from None
            begun = _GOES_ON.fullmatch(self._text, end)
            if begun and self._more():
                continue
            if begun and begun.group():
                raise InputError(f"{what}: {_CUT}")
            self._at = end
            return value

    def _cut(self, error: Exception) -> bool:
        """Whether a value may be broken only because the rest of it was not read yet."""
        if not isinstance(error, json.JSONDecodeError) or len(self._text) - self._at > _LONGEST:
            return False
        if error.msg.startswith("Unterminated string"):
            return True
        rest = self._text[error.pos :]
        return bool(_BEGUN.fullmatch(rest)) if self._ended else len(rest) <= _NEAR_END

    def _reason(self, error: Exception) -> str:
        if not isinstance(error, json.JSONDecodeError):
            return "it is nested too deeply" if isinstance(error, RecursionError) else f"it is no JSON: {error}"
        if self._cut(error):
            return _CUT
        return f"it is no JSON at character {self._before + error.pos}: {error.msg}"

    def _more(self) -> bool:
        """Read on, as much again as is left; False at the end of the file."""
        if self._ended:
            return False
        block = self._content.read(max(_BLOCK, len(self._text) - self._at))
        self._read(len(block))
        self._ended = not block
        self._before += self._at
        self._text, self._at = self._text[self._at :] + self._decode(block, final=self._ended), 0
        return True

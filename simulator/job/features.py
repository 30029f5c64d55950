"""Feature families: how raw ids of product rows ("user_42", "pin_77") become integer row addresses of their own table.

Row 0 of every family's table is the default row: unknown and missing ids look it up. Each family has a table of its
own, so equal numeric ids in different families never meet.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, MinLen
from numpy.typing import NDArray

from foreshard.simulator.job.hashing import hash_part, stable_key
from foreshard.simulator.job.workload import FeatureKind, FeaturePooling, Table

__all__ = [
    "DEFAULT_ROW",
    "Dictionary",
    "FeatureFamily",
    "FeatureKind",
    "FeaturePooling",
    "Hashed",
    "Modulo",
    "RawId",
    "learn_dictionary",
    "raw_id",
    "table_of",
]

IntArray = NDArray[np.int64]
RawId = int | str | None

DEFAULT_ROW = 0
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_DIGITS = re.compile(r"-?[0-9]+")
_MOST_DIGITS = 4000  # Python refuses to turn more than 4,300 digits into an int


def raw_id(value: object) -> RawId:
    """The canonical form of a raw id: None if missing, an int if it is written as one, else a stripped text in NFC.

    CSV cells are texts and JSON values numbers: "42", 42 and 42.0 are one id, "042" is another. Raises ValueError for
    a fraction, an infinity and anything that is neither number nor text.
    """
    match value:
        case None:
            return None
        case bool() | np.bool_():
            return str(value).lower()
        case int() | np.integer():
            return int(value)
        case float() | np.floating():
            return _whole(float(value))
        case str():
            return _text_id(value)
    raise ValueError(f"{value!r} is not an id: expected a number or a text")


def _whole(value: float) -> RawId:
    if np.isnan(value):
        return None
    if not value.is_integer():
        raise ValueError(f"{value!r} is not an id: expected a whole number or a text")
    return int(value)


def _text_id(value: str) -> RawId:
    text = unicodedata.normalize("NFC", value.strip())
    if _INTEGER.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text)
    return text or None


@dataclass(frozen=True, kw_only=True, slots=True)
class Dictionary:
    """Known ids have rows 1, 2, ... in the order of `ids`; any other id has the default row."""

    ids: tuple[int | str, ...]

    @property
    def num_embeddings(self) -> int:
        """Rows: one for each known id and the default row."""
        return len(self.ids) + 1

    def rows(self, raw: Sequence[RawId]) -> IntArray:
        """The row of every id, [ids]."""
        known: dict[RawId, int] = {value: row for row, value in enumerate(self.ids, start=1)}
        return np.fromiter((known.get(value, DEFAULT_ROW) for value in raw), dtype=np.int64, count=len(raw))


@dataclass(frozen=True, kw_only=True, slots=True)
class Modulo:
    """Row 1 + id mod (num_embeddings - 1) of whole numbers behind `prefix`; other ids have the default row."""

    num_embeddings: Annotated[int, Ge(1)]
    prefix: str = ""

    def rows(self, raw: Sequence[RawId]) -> IntArray:
        """The row of every id, [ids]."""
        return np.fromiter((self._row(value) for value in raw), dtype=np.int64, count=len(raw))

    def _row(self, value: RawId) -> int:
        text = "" if value is None else str(value)
        if not text.startswith(self.prefix) or self.num_embeddings == 1:
            return DEFAULT_ROW
        digits = text.removeprefix(self.prefix)
        if not _DIGITS.fullmatch(digits) or len(digits) > _MOST_DIGITS:
            return DEFAULT_ROW
        return 1 + int(digits) % (self.num_embeddings - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hashed:
    """Row 1 + hash of the id, spread over num_embeddings - 1 rows; only a missing id has the default row.

    The hash is the same in every process and on every platform. Distinct ids may share a row.
    """

    num_embeddings: Annotated[int, Ge(1)]

    def rows(self, raw: Sequence[RawId]) -> IntArray:
        """The row of every id, [ids]."""
        if self.num_embeddings == 1:
            return np.zeros(len(raw), dtype=np.int64)
        keys = np.fromiter((_hash_key(value) for value in raw), dtype=np.uint64, count=len(raw))
        known = np.fromiter((value is not None for value in raw), dtype=bool, count=len(raw))
        return np.where(known, 1 + hash_part(keys, self.num_embeddings - 1), DEFAULT_ROW)


def _hash_key(value: RawId) -> int:
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value % (1 << 64)
    return stable_key(str(value))


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureFamily:
    """One family of ids: which `column` of the rows holds it, how ids map to rows, how vectors are used.

    `single` has exactly one id a sample (the default row where it is missing); `pooled` and `sequence` have a list,
    which may be empty. A weighted family reads its weights from `weight_column`. In CSV cells `separator` splits
    lists. `max_ids` keeps the first ids of a longer list.
    """

    name: Annotated[str, MinLen(1)]
    mapping: Dictionary | Modulo | Hashed
    kind: FeatureKind = "single"
    pooling: FeaturePooling = "sum"
    column: str | None = None
    weight_column: str | None = None
    embedding_dim: Annotated[int, Ge(1)] = 128
    separator: str = "|"
    max_ids: Annotated[int, Ge(1)] | None = None

    @property
    def source(self) -> str:
        """The column that holds the ids."""
        return self.column or self.name


def table_of(family: FeatureFamily, pooling_factor: float = 1.0) -> Table:
    """The embedding table of a family: its own, named as the family; weighted sums are sums of weighted vectors."""
    pooling: Literal["sum", "mean"] = "mean" if family.kind == "pooled" and family.pooling == "mean" else "sum"
    return Table(
        name=family.name,
        num_embeddings=family.mapping.num_embeddings,
        embedding_dim=family.embedding_dim,
        pooling_factor=pooling_factor,
        pooling="none" if family.kind == "sequence" else pooling,
    )


def learn_dictionary(raw: Iterable[RawId], *, min_count: int = 1, max_ids: int | None = None) -> Dictionary:
    """The dictionary of the `max_ids` most frequent ids that are seen at least `min_count` times, ties by text."""
    counts = Counter(value for value in raw if value is not None)
    often = [(value, count) for value, count in counts.items() if count >= min_count]
    often.sort(key=lambda item: (-item[1], str(item[0])))
    return Dictionary(ids=tuple(value for value, _ in often[:max_ids]))

"""Follow one id through a training step: who owns its row, what moves over which links, how replicas agree on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from foreshard.simulator.job.program import Stage
from foreshard.simulator.job.suggestions import did_you_mean
from foreshard.simulator.job.workload import Table
from foreshard.simulator.step.prediction import Prediction

__all__ = ["Explanation", "Holder", "Hop", "LinkOnPath", "Owner", "Span", "StageStory", "check_question"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkOnPath:
    """A link on the way, with its nominal and usable bandwidth in B/s."""

    name: str
    bandwidth: float
    usable: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """`nbytes` of this one id that travel from rank to rank; no links where they stay on the rank.

    Of `paths` equal ones (several NICs, several spines) the first is shown.
    """

    what: str
    src: int
    dst: int
    nbytes: float
    links: tuple[LinkOnPath, ...]
    paths: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One operation of the predicted step on `rank`, in seconds; the step in which the id trains begins at 0."""

    name: str
    rank: int
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStory:
    """What happens to the id in one stage."""

    stage: Stage
    told: str
    hops: tuple[Hop, ...] = ()
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A rank that holds a column slice of the row: where it is, and the row's number in its shard.

    `local_row` is None where counting the rows before it would take long (large hashed tables).
    """

    rank: int
    node: int
    group: int
    position: int
    local_row: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The owner of one column slice of the row in the asking rank's group, and its replicas in the other groups.

    `columns` and `rows` are half-open ranges; `rows` is None where a hash chooses the owner.
    """

    columns: tuple[int, int]
    row_part: int
    rows: tuple[int, int] | None
    holder: Holder
    replicas: tuple[Holder, ...]

    @property
    def width(self) -> int:
        """Columns of the slice."""
        return self.columns[1] - self.columns[0]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Explanation:
    """The way of one id of `rank`'s batch through the seven stages; bytes are those of this id alone.

    `occurrences` is how often the batch holds it: counted where batches are sampled or replayed, else expected.
    `timed_by` says where the times are from, nothing for a machine with published constants alone.
    """

    scenario: str
    table: Table
    sharding: str
    hashed: bool
    id: int
    rank: int
    node: int
    group: int
    members: tuple[int, ...]
    position: int
    occurrences: float
    counted: bool
    owners: tuple[Owner, ...]
    stages: tuple[StageStory, ...]
    synchronised: str
    timed_by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON values, bytes, B/s and seconds."""
        table = self.table
        return asdict(self) | {
            "table": {
                "name": table.name,
                "num_embeddings": table.num_embeddings,
                "embedding_dim": table.embedding_dim,
                "data_type": table.data_type,
                "pooling": table.pooling,
                "features": list(table.features),
                "row_bytes": table.row_bytes,
            }
        }


def check_question(source: Prediction, table: str, row: object, rank: object) -> Iterator[str]:
    """Yield what does not exist: the table, the id in it, the rank in the world."""
    tables = {one.name: one for one in source.scenario.workload.tables}
    if table not in tables:
        names = list(tables)
        few = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        yield f"there is no table {table!r}{did_you_mean(table, names) or f'; tables are {few}'}"
    known = tables.get(table)
    if not isinstance(row, int):
        yield f"id {row!r} is no whole number: an id is a row address of the table"
    elif row < 0 or (known is not None and row >= known.num_embeddings):
        yield f"id {row} is outside {_ids(known)}"
    if not isinstance(rank, int) or not 0 <= rank < source.layout.world_size:
        yield f"rank {rank} is outside the world, whose ranks are 0 to {source.layout.world_size - 1}"


def _ids(table: Table | None) -> str:
    if table is None:
        return "every table: ids are 0 or more"
    return f"table {table.name!r}, whose ids are 0 to {table.num_embeddings - 1}"

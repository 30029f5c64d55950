"""What the runner and the calibration ask of a device: one interface, implemented with torch and with the CUDA kernels.

    ops = ops_on(torch.device("cpu"))  # calibration/ops/choosing.py
    tables = ops.tables([weights_a, weights_b], feature_tables=[0, 0, 1], optimizer=RowWiseAdagrad(learning_rate=0.1))
    bags = ops.recat(received_ids, received_lengths)
    vectors = ops.pooled_lookup(tables, bags)
    ops.update_pooled(tables, gradients, bags)

All tensors lie on `ops.device`. Features of a family are its slots on this owner: one feature in one column part.
Nothing here communicates; nothing waits for the device unless its docstring says so. Every result is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from foreshard.calibration.ops.optimizers import EmbeddingOptimizer
from foreshard.kernels import FeatureRoute
from foreshard.kernels.reference_codecs import Codec

if TYPE_CHECKING:
    import torch

__all__ = ["Bags", "Bucketised", "DeviceOps", "Mode", "Modes", "RowGradients", "Tables"]

Mode = Literal["sum", "mean"]
Modes: TypeAlias = Mode | Sequence[Mode]  # of all tables, or of each


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bags:
    """Ids of features in bags: bag b of feature f holds `ids[offsets[f x batch + b] : offsets[f x batch + b + 1]]`.

    `ids` int64 [ids] are rows of the feature's table, `offsets` int64 [features x batch + 1], `weights` float32 [ids].
    Sequences use the same form: their vectors are those of `ids`, feature by feature.
    """

    ids: torch.Tensor
    offsets: torch.Tensor
    features: int
    weights: torch.Tensor | None = None

    @property
    def batch(self) -> int:
        """Bags of each feature."""
        return (self.offsets.numel() - 1) // self.features if self.features else 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bucketised:
    """`ids[permutation]` groups ids by owner and keeps their order; `inverse` undoes it; `counts` int64 [members]."""

    permutation: torch.Tensor
    inverse: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowGradients:
    """Summed gradients of the distinct rows of one table: `rows` int64 [distinct], `sums` float32 [distinct, dim]."""

    rows: torch.Tensor
    sums: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tables:
    """Shards that are looked up together; made once by `DeviceOps.tables`, used every step.

    `weights` [rows, dim] (float32, float16 or bfloat16) and `state` are updated in place and must stay where they are.
    `state[t]`: () for SGD; (v [rows],) for row-wise AdaGrad; (v [rows, dim],) for AdaGrad; (m, v) for Adam: float32.
    `feature_tables[f]` is the table of feature f; `columns` [features + 1] the columns where the features' vectors
    begin in a pooled output. `handle` belongs to the implementation.
    """

    weights: tuple[torch.Tensor, ...]
    state: tuple[tuple[torch.Tensor, ...], ...]
    feature_tables: tuple[int, ...]
    columns: tuple[int, ...]
    handle: Any = None

    @property
    def width(self) -> int:
        """Columns of a pooled output: the dims of all features."""
        return self.columns[-1]


class DeviceOps(Protocol):
    """Operations of a training step on one device."""

    device: torch.device

    # -- ids: routing on the batch owner, table order on the row owner ------------------------------------------

    def find_owners(
        self, routes: Sequence[FeatureRoute], ids: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (owner int32, row int64) of every id; feature f owns `ids[starts[f] : starts[f + 1]]`.

        The row counts from the start of the owner's range. Of a hashed table it is the id itself, while the
        simulator's `Route.rows` holds the local row: give that one to a shard that keeps only its own rows.
        """

    def bucketise(self, owners: torch.Tensor, members: int) -> Bucketised:
        """The stable permutation that groups ids by owner (int32 [ids]), its inverse, and ids of each owner."""

    def deduplicate(self, ids: torch.Tensor, *, num_embeddings: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (distinct ids, rising; place of every id among them), int64. Waits for the device: how many?"""

    def permute(self, values: torch.Tensor, permutation: torch.Tensor) -> torch.Tensor:
        """`values[permutation]`, values [n] or [n, dim]: ids into send order, replies back into slot order."""

    def permute_segments(self, values: torch.Tensor, lengths: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Whole segments of `values` [n] or [n, dim], segment `order[0]` first; `lengths` [segments] add up to n."""

    def bags(self, ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None = None) -> Bags:
        """Bags of ids that already lie in table order; `lengths` int32 or int64 [features, batch]."""

    def recat(self, ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None = None) -> Bags:
        """Received ids in table order: from [source][feature][sample] to bags of feature, source x sample.

        `lengths` [sources, features, samples] as received. The batch of the bags is sources x samples.
        """

    # -- rows ---------------------------------------------------------------------------------------------------

    def tables(
        self,
        weights: Sequence[torch.Tensor],
        *,
        feature_tables: Sequence[int] | None = None,
        optimizer: EmbeddingOptimizer | None = None,
        state: Sequence[Sequence[torch.Tensor]] | None = None,
    ) -> Tables:
        """Put shards together for fused look-ups; state starts at zero for `optimizer` unless `state` gives it.

        One feature a table unless `feature_tables` says otherwise. Raises InputError naming every mistake.
        """

    def pooled_lookup(self, tables: Tables, bags: Bags, *, mode: Modes = "sum") -> torch.Tensor:
        """The pooled vectors of all features side by side, float32 [batch, width]; an empty bag gives zeros.

        Weights of the bags multiply the vectors; a mean divides by the number of ids.
        """

    def sequence_lookup(self, tables: Tables, bags: Bags) -> tuple[torch.Tensor, ...]:
        """The vectors of every id, feature by feature: float32 [ids of the feature, dim of its table] each.

        Waits for the device: how many ids has each?
        """

    def update_pooled(
        self, tables: Tables, optimizer: EmbeddingOptimizer, gradients: torch.Tensor, bags: Bags, *, mode: Modes = "sum"
    ) -> None:
        """Step the rows that `pooled_lookup` read, once per distinct row; `gradients` float32 [batch, width]."""

    def update_sequence(
        self, tables: Tables, optimizer: EmbeddingOptimizer, gradients: Sequence[torch.Tensor], bags: Bags
    ) -> None:
        """Step the rows that `sequence_lookup` read; `gradients` are shaped as its result."""

    def sum_pooled(
        self, tables: Tables, gradients: torch.Tensor, bags: Bags, *, mode: Modes = "sum"
    ) -> tuple[RowGradients, ...]:
        """The summed gradient of every distinct row of each table, not touching it. Waits for the device: how many?"""

    def sum_sequence(self, tables: Tables, gradients: Sequence[torch.Tensor], bags: Bags) -> tuple[RowGradients, ...]:
        """`sum_pooled` of a sequence look-up."""

    def update_rows(self, tables: Tables, optimizer: EmbeddingOptimizer, gradients: Sequence[RowGradients]) -> None:
        """Step rows by gradients given row by row, one entry a table; rows may repeat (one list after the other of all
        replicas) and are summed in their order first."""

    def add_pooled(
        self,
        targets: Sequence[torch.Tensor],
        feature_tables: Sequence[int],
        gradients: torch.Tensor,
        bags: Bags,
        *,
        mode: Modes = "sum",
    ) -> None:
        """Add gradients [batch, width] row by row to `targets` float32 [rows, dim], one a table.

        The backward of pooling from distinct vectors, and of a replicated (data_parallel) table.
        """

    def add_sequence(
        self,
        targets: Sequence[torch.Tensor],
        feature_tables: Sequence[int],
        gradients: Sequence[torch.Tensor],
        bags: Bags,
    ) -> None:
        """`add_pooled` of expanded distinct vectors; `gradients` float32 [ids of the feature, dim] each."""

    # -- vectors on the batch owner -----------------------------------------------------------------------------

    def join(
        self,
        received: torch.Tensor,
        samples: int,
        widths: Sequence[Sequence[int]],
        order: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Vectors side by side, [samples, sum of widths], from flat [source][sample][columns of the source].

        `widths[s]` are those of the vectors of source s. Vectors are numbered source by source; number `order[0]` comes
        first in the result.
        """

    def split(
        self, vectors: torch.Tensor, widths: Sequence[Sequence[int]], order: Sequence[int] | None = None
    ) -> torch.Tensor:
        """What `join` came from, flat: its inverse and its backward. `widths` and `order` are those given to `join`."""

    def mean(self, vectors: torch.Tensor, lengths: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Sums [batch, sum of widths] over the number of ids, `lengths` [features, batch]; empty bags are kept.

        For tables cut by rows, whose owners know no bag whole. It is its own backward.
        """

    def from_distinct(
        self, vectors: Sequence[torch.Tensor], feature_tables: Sequence[int], bags: Bags, *, mode: Modes = "sum"
    ) -> torch.Tensor:
        """Pooled vectors [batch, width] of distinct ones, [distinct, dim] a table; bags hold places among them."""

    def expand(
        self, vectors: Sequence[torch.Tensor], feature_tables: Sequence[int], bags: Bags
    ) -> tuple[torch.Tensor, ...]:
        """The vector of every id from distinct ones, feature by feature."""

    # -- the wire and memory ------------------------------------------------------------------------------------

    def encode(self, rows: torch.Tensor, codec: Codec, widths: Sequence[int] | None = None) -> torch.Tensor:
        """Rows float32 [rows, columns] as they travel: float16, bfloat16 [rows, columns], or uint8 of row-wise formats.

        `widths` cut a row into vectors with scales of their own (None: the row is one vector); then uint8 is
        [rows, columns + len(widths) x overhead], vector after vector with its scales (kernels.reference_codecs).
        """

    def decode(self, encoded: torch.Tensor, codec: Codec, widths: Sequence[int] | None = None) -> torch.Tensor:
        """The float32 rows [rows, columns] that `encode` was given, as exactly as the format allows."""

    def clear(self, tensors: Sequence[torch.Tensor]) -> None:
        """Fill with zeros, in place."""

    def synchronize(self) -> None:
        """Wait until the device has finished all that was asked of it; at once on a CPU."""

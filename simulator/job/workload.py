"""What a training job computes on: embedding tables, their access distributions, the dense model, the batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MinLen

__all__ = [
    "BYTES_PER_ELEMENT",
    "Access",
    "DataType",
    "Dense",
    "FamilyChoice",
    "FeatureKind",
    "FeaturePooling",
    "Pooling",
    "Replay",
    "Table",
    "Workload",
]

DataType = Literal["fp32", "fp16", "bf16", "fp8", "int8"]
Pooling = Literal["sum", "mean", "none"]
FeatureKind = Literal["single", "pooled", "sequence"]
FeaturePooling = Literal["sum", "mean", "weighted"]

# Limits far beyond any job that is known, so that a slip of the finger is told and no product of sizes overflows.
MAX_BATCH_SIZE = 100_000_000  # samples per rank; MLPerf's largest global batches are near 140,000
MAX_ROWS = 10**15  # of a table; one byte a row makes a petabyte
MAX_WIDTH = 10_000_000  # elements of a vector or features of a layer
MAX_IDS = 1_000_000.0  # mean ids of a bag, and bags of a sample
MIN_IDS = 1e-9
MAX_COUNT = 10**18  # lookups of a bin, parameters and FLOPs of a dense model

RowCount = Annotated[int, Ge(1), Le(MAX_ROWS)]
Width = Annotated[int, Ge(1), Le(MAX_WIDTH)]
IdCount = Annotated[float, Gt(0), Ge(MIN_IDS), Le(MAX_IDS)]
Count = Annotated[float, Ge(0), Le(MAX_COUNT)]

BYTES_PER_ELEMENT: dict[DataType, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How ids fall on the rows of one table: p(k) proportional to (k + shift)^-zipf for rank k = 1, 2, ...

    zipf = 0 is uniform. `heavy_hitters` are shares of all lookups that go to one row each, taken off the top.
    `locality` is the share of ids that repeat an id seen shortly before (short-range reuse). `order` says where the
    k-th hottest row sits: at a pseudo-random row ("scattered", as with hashed ids) or at row k ("by_frequency").

    `histogram` takes the law's place where lookups were counted: the lookups of each bin, in any unit. A bin is one
    row, or `histogram_rows` equally hot ones; `histogram_ids` say which row each bin is. Other rows are never hit.
    """

    zipf: Annotated[float, Ge(0), Le(8)] = 0.0
    shift: Count = 0.0
    heavy_hitters: tuple[Annotated[float, Gt(0), Le(1)], ...] = ()
    locality: Annotated[float, Ge(0), Le(1)] = 0.0
    order: Literal["scattered", "by_frequency"] = "scattered"
    histogram: tuple[Count, ...] = ()
    histogram_rows: tuple[RowCount, ...] = ()
    histogram_ids: tuple[Annotated[int, Ge(0), Le(MAX_ROWS)], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One embedding table [num_embeddings, embedding_dim] and the features that look rows up in it.

    `pooling_factor` is the mean number of ids per sample: of each feature if one number, feature by feature if many.
    `pooling` "none" is a sequence table: every id's vector is returned. `num_poolings` is the mean number of poolings
    (bags of `pooling_factor` ids) per sample and feature: 1, unless a feature comes more rarely or more often than
    samples do (variable batch per feature, TorchRec's num_poolings).
    """

    name: Annotated[str, MinLen(1)]
    num_embeddings: RowCount
    embedding_dim: Width
    pooling_factor: IdCount | tuple[IdCount, ...] = 1.0
    pooling: Pooling = "sum"
    data_type: DataType = "fp32"
    feature_names: tuple[Annotated[str, MinLen(1)], ...] = ()
    access: Access = field(default_factory=Access)
    num_poolings: IdCount = 1.0

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that use this table; the table's own name where none is given."""
        return self.feature_names or (self.name,)

    @property
    def pooling_factors(self) -> tuple[float, ...]:
        """Mean ids per sample of each feature, in the order of `features`."""
        if isinstance(self.pooling_factor, tuple):
            return tuple(pooling * self.num_poolings for pooling in self.pooling_factor)
        return (self.pooling_factor * self.num_poolings,) * len(self.features)

    @property
    def poolings_per_sample(self) -> float:
        """Bags of ids, and so lengths, that one sample has in this table, over all its features."""
        return len(self.features) * self.num_poolings

    @property
    def ids_per_sample(self) -> float:
        """Mean ids that one sample looks up in this table, over all its features."""
        return float(sum(self.pooling_factors))

    @property
    def vectors_per_sample(self) -> float:
        """Vectors that one sample gets back: one a bag when pooled, one an id in a sequence table."""
        return self.ids_per_sample if self.pooling == "none" else self.poolings_per_sample

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's weights."""
        return self.embedding_dim * BYTES_PER_ELEMENT[self.data_type]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole table's weights."""
        return self.num_embeddings * self.row_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Dense:
    """The dense model, either as multilayer perceptrons or as totals.

    `layers` holds chains of widths: ((13, 512, 256),) is Linear(13, 512) then Linear(512, 256). Without `layers`,
    `forward_flops_per_sample`, `parameters` and `kernels` (forward kernel launches) describe it in sum.
    """

    layers: tuple[tuple[Width, ...], ...] = ()
    forward_flops_per_sample: Count | None = None
    parameters: Annotated[int, Ge(0), Le(MAX_COUNT)] | None = None
    kernels: Annotated[int, Ge(0), Le(MAX_WIDTH)] | None = None
    data_type: DataType = "fp32"

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of every linear layer."""
        return tuple(pair for chain in self.layers for pair in pairwise(chain))

    @property
    def input_features(self) -> int:
        """Dense features of a sample: the first width of several chains; one chain alone begins with the vectors."""
        return self.layers[0][0] if len(self.layers) > 1 else 0

    @property
    def flops_per_sample(self) -> float:
        """Forward FLOPs of one sample; a matrix product counts 2 x inputs x outputs."""
        if self.forward_flops_per_sample is not None:
            return self.forward_flops_per_sample
        return float(sum(2 * inputs * outputs for inputs, outputs in self.linears))

    @property
    def num_parameters(self) -> int:
        """Dense parameters: weights and biases of all layers, or the total given."""
        if self.parameters is not None:
            return self.parameters
        return sum(inputs * outputs + outputs for inputs, outputs in self.linears)


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyChoice:
    """A family of ids in recorded rows, as a user writes it; `features.FeatureFamily` is what becomes of it.

    `mapping` "dictionary" gives known `ids` rows of their own, by default those that the file holds at least
    `min_count` times, the most frequent `num_embeddings` - 1 of them; "modulo" takes the whole numbers behind `prefix`
    and "hash" any id, both into `num_embeddings` rows. Row 0 serves unknown ids. The other keys are FeatureFamily's.
    """

    name: Annotated[str, MinLen(1)]
    mapping: Literal["dictionary", "modulo", "hash"] = "dictionary"
    num_embeddings: RowCount | None = None
    ids: tuple[int | str, ...] | None = None
    min_count: Annotated[int, Ge(1)] = 1
    prefix: str = ""
    kind: FeatureKind = "single"
    pooling: FeaturePooling = "sum"
    column: str | None = None
    weight_column: str | None = None
    embedding_dim: Width = 128
    data_type: DataType = "fp32"
    separator: Annotated[str, MinLen(1)] = "|"
    max_ids: Annotated[int, Ge(1)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Recorded samples that are run in place of drawn ones: a `file` of product rows, or a trace of ids.

    Rank r trains on samples r x batch_size to (r + 1) x batch_size - 1. A file with too few samples is refused, unless
    `repeat` lets it begin anew. `numeric` names the columns of rows that hold dense features.
    """

    file: Annotated[str, MinLen(1)]
    repeat: bool = False
    numeric: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One training job: `batch_size` samples per rank and step, its tables and its dense model.

    `replay` names recorded samples, `families` say what ids their rows hold. With `weighted` every drawn id has an
    fp32 weight (TorchRec's is_weighted), which is 1; recorded ids have weights of their own.
    """

    batch_size: Annotated[int, Ge(1), Le(MAX_BATCH_SIZE)]
    tables: tuple[Table, ...]
    dense: Dense = field(default_factory=Dense)
    name: str = "custom"
    replay: Replay | None = None
    families: tuple[FamilyChoice, ...] = ()
    weighted: bool = False

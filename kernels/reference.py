"""What the CUDA kernels compute, in NumPy: runs anywhere, and is the oracle that the kernels are tested against."""

from __future__ import annotations

from foreshard.kernels.number_formats import (
    bf16_from_fp32,
    fp8_from_fp32,
    fp8_values,
    fp32_from_bf16,
    rows_from_fp32,
    rows_to_fp32,
)
from foreshard.kernels.reference_codecs import CODECS, ROW_OVERHEAD, decode, encode
from foreshard.kernels.reference_lookup import (
    bag_of_each_id,
    pooled_lookup,
    pooled_tables,
    sequence_lookup,
    spread_gradients,
)
from foreshard.kernels.reference_routing import (
    bucketise,
    deduplicate,
    hash_part,
    inverse_permutation,
    mix64,
    owner_counts,
    range_part,
)
from foreshard.kernels.reference_tiers import EMPTY, WAYS, SetAssociativeCache, copy_rows, tiered_lookup
from foreshard.kernels.reference_update import (
    LONG_SEGMENT,
    RowWiseAdagrad,
    Segments,
    Sgd,
    segment,
    sum_segments,
    update_rows,
)

__all__ = [
    "CODECS",
    "EMPTY",
    "LONG_SEGMENT",
    "ROW_OVERHEAD",
    "WAYS",
    "RowWiseAdagrad",
    "Segments",
    "SetAssociativeCache",
    "Sgd",
    "bag_of_each_id",
    "bf16_from_fp32",
    "bucketise",
    "copy_rows",
    "decode",
    "deduplicate",
    "encode",
    "fp8_from_fp32",
    "fp8_values",
    "fp32_from_bf16",
    "hash_part",
    "inverse_permutation",
    "mix64",
    "owner_counts",
    "pooled_lookup",
    "pooled_tables",
    "range_part",
    "rows_from_fp32",
    "rows_to_fp32",
    "segment",
    "sequence_lookup",
    "spread_gradients",
    "sum_segments",
    "tiered_lookup",
    "update_rows",
]

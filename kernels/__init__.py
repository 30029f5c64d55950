"""CUDA kernels for embedding look-ups, their CuPy wrappers, and NumPy references that run anywhere.

    from foreshard import kernels
    tables = kernels.table_group([weights_a, weights_b], momentum=[state_a, state_b])
    vectors = kernels.pooled_lookup(tables, ids, offsets)
    kernels.update_pooled(tables, kernels.RowWiseAdagrad(learning_rate=0.01), gradients, ids, offsets)

Arrays are CuPy's or, by DLPack and without copies, torch CUDA tensors; work goes to the current stream. Results lie in
CuPy's memory, which torch's `record_stream` does not know: keep them until other streams have read them. Importing
needs neither CuPy nor a GPU, calling says what to install. `foreshard.kernels.reference` computes the same on NumPy.
"""

from __future__ import annotations

from foreshard.kernels.codecs import decode, encode
from foreshard.kernels.lookup import pooled_lookup, sequence_lookup
from foreshard.kernels.reference_update import RowWiseAdagrad, Sgd
from foreshard.kernels.routing import Bucketised, FeatureRoute, bucketise, deduplicate, find_owners
from foreshard.kernels.tables import TableGroup, table_group
from foreshard.kernels.tiers import RowCache, copy_rows, pinned_rows
from foreshard.kernels.update import RowSums, sum_pooled, sum_sequence, update_pooled, update_sequence

__all__ = [
    "Bucketised",
    "FeatureRoute",
    "RowCache",
    "RowSums",
    "RowWiseAdagrad",
    "Sgd",
    "TableGroup",
    "bucketise",
    "copy_rows",
    "decode",
    "deduplicate",
    "encode",
    "find_owners",
    "pinned_rows",
    "pooled_lookup",
    "sequence_lookup",
    "sum_pooled",
    "sum_sequence",
    "table_group",
    "update_pooled",
    "update_sequence",
]

"""Kinds of work that one rank does on its own device, and what each is counted in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEATURES", "WORK_KINDS", "Work", "WorkKind"]

FloatArray = NDArray[np.float64]

WorkKind = Literal[
    "copy_in",
    "permute",
    "recat",
    "dedup",
    "from_distinct",
    "to_distinct",
    "lookup",
    "update",
    "sum_by_row",
    "join",
    "encode",
    "decode",
    "dense_forward",
    "dense_backward",
    "dense_optimizer",
    "replica_update",
    "clear",
    "pad",
    "issue",
]
WORK_KINDS: tuple[WorkKind, ...] = get_args(WorkKind)

_ROWS = ("calls", "tables", "lookups", "row_bytes", "vector_bytes", "distinct_rows", "distinct_elements")
_DISTINCT = ("calls", "ids", "gathered_bytes", "vector_bytes")
_CODED = ("calls", "bytes", "fp16_elements", "bf16_elements", "fp8_elements", "int8_elements")
_LAYERS = ("calls", "layers", "flops", "weight_bytes", "activation_bytes", "vector_bytes")

FEATURES: Mapping[WorkKind, tuple[str, ...]] = MappingProxyType(
    {
        "copy_in": ("calls", "bytes"),
        "permute": ("calls", "ids", "lengths"),
        "recat": ("calls", "ids", "lengths"),
        "dedup": ("calls", "ids"),
        "from_distinct": _DISTINCT,
        "to_distinct": _DISTINCT,
        "lookup": _ROWS,
        "update": _ROWS,
        "sum_by_row": _ROWS,
        "join": ("calls", "bytes"),
        "encode": _CODED,
        "decode": _CODED,
        "dense_forward": _LAYERS,
        "dense_backward": _LAYERS,
        "dense_optimizer": ("calls", "elements", "replicated_elements"),
        "replica_update": ("calls", "gathered_bytes", "rows", "row_bytes"),
        "clear": ("calls", "bytes"),
        "pad": ("calls", "bytes"),
        "issue": ("calls",),
    }
)
"""What the work of each kind is counted in, for one operation on one rank; a fit uses any of these.

`calls` is 1 wherever there is any work, else 0. The rest, by kind:

permute, recat: ids and lengths in the rank's buffer, before it is sent and after it came.
lookup, update, sum_by_row: `lookups` rows read as often as they are asked for; `row_bytes` of them, at least 128 a
row; `vector_bytes` of the vectors, or of their gradients, on the owner's side of the exchange (fp32); distinct rows
and their elements; `tables` with a shard on the rank.
dedup: ids of the own batch. from_distinct, to_distinct: these ids, `gathered_bytes` of vectors read, one for each id,
`vector_bytes` of the vectors written (to_distinct: of the distinct ones).
join: bytes of the vectors that came, each once.
encode, decode: fp32 bytes and bytes on the wire together, and elements by their type on the wire.
dense_forward, dense_backward: linear layers; floating-point operations (of the backward: twice those of the forward);
bytes of weights; bytes of all layers' inputs and outputs, in the model's data type; bytes of the pooled vectors that
come to the batch owner (fp32).
dense_optimizer: parameters of the dense model, and weight elements of replicated (data_parallel) tables.
replica_update: bytes gathered from all replicas, distinct rows of all, bytes of their fp32 gradients.
copy_in: bytes that come to the device. clear, pad: bytes written. issue: launching one collective, in host seconds.
"""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Work:
    """Work of one kind and the seconds it takes on every rank, [ranks]; `counts` [ranks] by feature of FEATURES."""

    kind: WorkKind
    counts: Mapping[str, FloatArray]
    seconds: FloatArray

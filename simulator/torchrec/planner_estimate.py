"""What TorchRec's planner would say: its cost and storage formulas of version 1.9, reproduced for comparison.

The formulas are bytes over a bandwidth, without latency, contention, skew or overlap. They stand beside foreshard's
prediction so that a user of the planner finds the numbers again and sees what they leave out. Source of formulas and
constants: meta-pytorch/torchrec 1.9.2, torchrec/distributed/planner (constants, estimator, shard_estimators,
storage_reservations).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from foreshard.simulator.job.scenario import Comms, Optimizer, Pipeline
from foreshard.simulator.job.sharding import ComputeKernel, ShardingType
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, Table

__all__ = ["PlannerPerf", "PlannerShard", "PlannerTopology", "planner_budget", "shard_hbm", "shard_perf"]

GIB = 2.0**30

INDEX_BYTES = 8
FULL_BLOCK_DIM, HALF_BLOCK_DIM = 128, 64
HALF_BLOCK_PENALTY, QUARTER_BLOCK_PENALTY = 1.15, 1.75
MIN_LOOKUP_DIM = 32
BATCHED_COPY_FACTOR = 2.455
DP_ELEMENTWISE_FACTOR = 9.22
BACKWARD_MULTIPLIER = 2.0
CACHE_LOAD_FACTOR = 0.2
UVM_DIVISOR = 10.0
RESERVED_SHARE, DENSE_MULTIPLIER, KJT_MULTIPLIER = 0.15, 6, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerTopology:
    """What the planner knows of a machine; rates in bytes/s, the defaults are those of every TorchRec topology.

    TorchRec stores rates in bytes per millisecond: the default intra-node 600 GiB/s is its 644245094.4.
    """

    world_size: Annotated[int, Gt(0)]
    local_world_size: Annotated[int, Gt(0)]
    hbm_bytes_per_s: Annotated[float, Gt(0)] = 897 * GIB
    hbm_to_ddr_bytes_per_s: Annotated[float, Gt(0)] = 32 * GIB
    intra_bytes_per_s: Annotated[float, Gt(0)] = 600 * GIB
    inter_bytes_per_s: Annotated[float, Gt(0)] = 12.5 * GIB
    hbm_cap_bytes: Annotated[float, Gt(0)] = 32 * GIB

    def link(self, world_size: int, local_world_size: int) -> float:
        """Bytes/s it charges any collective but all_reduce among `world_size` ranks: one number in or across nodes."""
        return self.intra_bytes_per_s if world_size <= local_world_size else self.inter_bytes_per_s

    def kernel(self, kernel: ComputeKernel) -> float:
        """Bytes/s it charges the lookup of a compute kernel."""
        caching = CACHE_LOAD_FACTOR * self.hbm_bytes_per_s + (1 - CACHE_LOAD_FACTOR) * self.hbm_to_ddr_bytes_per_s
        rates: dict[ComputeKernel, float] = {
            "dense": 0.5 * self.hbm_bytes_per_s,
            "fused": self.hbm_bytes_per_s,
            "fused_uvm": self.hbm_to_ddr_bytes_per_s / UVM_DIVISOR,
            "fused_uvm_caching": caching / UVM_DIVISOR,
        }
        return rates[kernel]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerPerf:
    """The planner's times of one shard in seconds; it computes `input_dist_s` and leaves it out of its total."""

    fwd_compute_s: float
    fwd_comms_s: float
    bwd_compute_s: float
    bwd_comms_s: float
    input_dist_s: float
    prefetch_s: float = 0.0

    @property
    def total_s(self) -> float:
        """What the planner adds up to rate a plan, in seconds."""
        return self.fwd_compute_s + self.fwd_comms_s + self.bwd_compute_s + self.bwd_comms_s + self.prefetch_s


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerShard:
    """One shard as the planner sees it: `rows` x `columns` of a table."""

    table: Table
    sharding: ShardingType
    rows: int
    columns: int
    kernel: ComputeKernel | None = None

    @property
    def compute_kernel(self) -> ComputeKernel:
        """The kernel given, else dense for data_parallel tables and fused for the others."""
        return self.kernel or ("dense" if self.sharding == "data_parallel" else "fused")

    @property
    def pooled(self) -> bool:
        """Whether the table's features are pooled."""
        return self.table.pooling != "none"

    @property
    def element_bytes(self) -> int:
        """Bytes of one weight."""
        return BYTES_PER_ELEMENT[self.table.data_type]

    def ids(self, batch_size: int) -> float:
        """Ids that one rank's batch looks up in the table."""
        return sum(pooling * batch_size for pooling in self.table.pooling_factors)

    def vectors(self, batch_size: int) -> float:
        """Vectors that one rank's batch gets back; a feature that is mostly absent counts its share of samples."""
        if not self.pooled:
            return self.ids(batch_size)
        return sum(min(1.0, pooling) * batch_size for pooling in self.table.pooling_factors)

    @property
    def by_rows(self) -> bool:
        """Whether several ranks share the table's rows, so that vectors are summed on their way back."""
        return self.sharding in ("row_wise", "table_row_wise", "grid_shard")

    def row_ranks(self, topology: PlannerTopology) -> int:
        """Ranks that the planner divides the table's lookups by: those that share its rows."""
        match self.sharding:
            case "row_wise":
                return topology.world_size
            case "table_row_wise" | "grid_shard":
                return topology.local_world_size
            case _:
                return 1


def _wire_bytes(shard: PlannerShard, comms: Comms) -> tuple[float, float]:
    """Bytes an element on the wire, forward and backward: the codecs', or the table's own where there are none."""
    if comms.forward == comms.backward == "fp32":
        return float(shard.element_bytes), float(shard.element_bytes)
    return float(BYTES_PER_ELEMENT[comms.forward]), float(BYTES_PER_ELEMENT[comms.backward])


def shard_perf(shard: PlannerShard, batch_size: int, comms: Comms, topology: PlannerTopology) -> PlannerPerf:
    """Return the planner's times of one shard, in seconds, with `batch_size` samples a rank.

    W ranks, L of them in a node, D columns, t bytes of a weight, c bytes on the wire; in = ids of a rank's batch,
    out = vectors. table_wise: compute (8 in W + in W max(D, 32) t + out W D c) x penalty / HBM, comms out W D c / link;
    row_wise divides the lookups by W, table_row_wise by L; backward is twice the forward's compute.
    """
    if shard.sharding == "data_parallel":
        return _replicated_perf(shard, batch_size, topology)
    forward, backward = _wire_bytes(shard, comms)
    ids, parts, world = shard.ids(batch_size), shard.row_ranks(topology), topology.world_size
    vectors = shard.vectors(batch_size)
    returned = (vectors if shard.pooled else vectors / parts) * world * shard.columns
    width = shard.columns if shard.by_rows else max(shard.columns, MIN_LOOKUP_DIM)
    read = math.ceil(ids / parts * world * INDEX_BYTES)
    moved = read + ids / parts * world * width * shard.element_bytes + returned * forward
    rate = topology.kernel(shard.compute_kernel)
    compute = moved * (1.0 if shard.by_rows else _block_penalty(shard.columns)) / rate
    copy = returned * backward * BATCHED_COPY_FACTOR / rate if shard.by_rows else 0.0
    return PlannerPerf(
        fwd_compute_s=compute,
        fwd_comms_s=_comms(shard, vectors, returned, forward, topology),
        bwd_compute_s=compute * BACKWARD_MULTIPLIER,
        bwd_comms_s=_comms(shard, vectors, returned, backward, topology) + copy,
        input_dist_s=math.ceil(ids * world * INDEX_BYTES) / topology.link(world, topology.local_world_size),
    )


def _block_penalty(columns: int) -> float:
    if columns >= FULL_BLOCK_DIM:
        return 1.0
    return HALF_BLOCK_PENALTY if columns >= HALF_BLOCK_DIM else QUARTER_BLOCK_PENALTY


def _comms(shard: PlannerShard, vectors: float, returned: float, element: float, topology: PlannerTopology) -> float:
    """Seconds of the exchange of vectors: one level, or within and between nodes for the kinds that share a node."""
    if shard.sharding not in ("table_row_wise", "grid_shard"):
        return returned * element / topology.link(topology.world_size, topology.local_world_size)
    local = topology.local_world_size
    nodes = max(1, topology.world_size // local)
    within = returned * element / topology.link(local, local)
    between = vectors * nodes * shard.columns * element / topology.link(nodes, 1) if nodes > 1 else 0.0
    return within + between


def _replicated_perf(shard: PlannerShard, batch_size: int, topology: PlannerTopology) -> PlannerPerf:
    """data_parallel: local lookups, an all-reduce of the whole table and its elementwise kernels."""
    ids, vectors, element = shard.ids(batch_size), shard.vectors(batch_size), shard.element_bytes
    rate = topology.kernel(shard.compute_kernel)
    moved = math.ceil(ids * INDEX_BYTES) + (ids + vectors) * shard.columns * element
    table = shard.rows * shard.columns * element
    nodes = min(topology.world_size / topology.local_world_size, 2)
    all_reduce = table * (2 * nodes - 1) / nodes / (topology.inter_bytes_per_s * topology.local_world_size)
    if topology.world_size > 2 * topology.local_world_size:
        all_reduce *= 2
    return PlannerPerf(
        fwd_compute_s=moved / rate,
        fwd_comms_s=0.0,
        bwd_compute_s=moved / rate * BACKWARD_MULTIPLIER,
        bwd_comms_s=all_reduce + table * DP_ELEMENTWISE_FACTOR / rate,
        input_dist_s=0.0,
    )


def shard_hbm(
    shard: PlannerShard, batch_size: int, optimizer: Optimizer | None, pipeline: Pipeline, topology: PlannerTopology
) -> int:
    """Return the planner's HBM bytes of one shard: weights, optimizer, cache state and buffers of ids and vectors.

    Pipeline "base" counts ids and vectors once, "sparse_dist" ids twice and no vectors; an empty shard has no buffers.
    """
    cached = shard.compute_kernel == "fused_uvm_caching"
    storage = shard.table.num_embeddings * shard.table.embedding_dim * shard.element_bytes
    if shard.compute_kernel == "fused_uvm":
        storage = 0
    elif cached:
        storage = round(storage * CACHE_LOAD_FACTOR)
    share = shard.rows * shard.columns
    whole = shard.table.num_embeddings * shard.table.embedding_dim
    weights = storage if shard.sharding == "data_parallel" else math.ceil(storage * share / whole)
    state = math.ceil(weights * _optimizer_multiplier(optimizer, shard.table.embedding_dim))
    cache_state = math.ceil(shard.rows * (4 + 16 * CACHE_LOAD_FACTOR)) if cached else 0
    ids, vectors = _buffers(shard, batch_size, topology)
    if pipeline == "sparse_dist":
        return weights + state + cache_state + 2 * ids
    return weights + state + cache_state + ids + vectors


def _optimizer_multiplier(optimizer: Optimizer | None, embedding_dim: int) -> float:
    match optimizer:
        case None | "sgd":
            return 0.0
        case "adam":
            return 2.0
        case "rowwise_adagrad":
            return 1.0 / embedding_dim
        case "adagrad":
            return 1.0


def _buffers(shard: PlannerShard, batch_size: int, topology: PlannerTopology) -> tuple[int, int]:
    """Bytes of the ids that reach the shard and of the vectors that leave it."""
    if shard.by_rows and shard.rows * shard.columns == 0:
        return 0, 0
    parts = shard.row_ranks(topology)
    world = 1 if shard.sharding == "data_parallel" else topology.world_size
    ids = shard.ids(batch_size) / parts
    vectors = shard.vectors(batch_size) if shard.pooled else ids
    columns = shard.columns if shard.sharding != "table_wise" else shard.table.embedding_dim
    return (
        math.ceil(ids * world * INDEX_BYTES),
        math.ceil(vectors * world * columns * shard.element_bytes),
    )


def planner_budget(
    tables: tuple[Table, ...], dense_parameter_bytes: float, batch_size: int, topology: PlannerTopology
) -> float:
    """Return the HBM bytes of a rank that the planner leaves to shards by its default reservation; may be negative.

    15 % of the device, six times the dense parameters, and twenty times the ids of a batch (two pipelined batches with
    ten copies each).
    """
    ids = sum(pooling * batch_size for table in tables for pooling in table.pooling_factors)
    left = int((1 - RESERVED_SHARE) * topology.hbm_cap_bytes)
    return left - dense_parameter_bytes * DENSE_MULTIPLIER - math.ceil(ids * float(INDEX_BYTES)) * KJT_MULTIPLIER

"""HBM of every rank, item by item, in TorchRec's words, and the tables in every node's host memory.

A plan that does not fit is described all the same.

Nothing is counted as reused within a step: PyTorch's caching allocator keeps the blocks of different streams apart, so
the total lies between what is allocated at the peak and what the allocator holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.codecs import FULL_BYTES, carried, wire_bytes
from foreshard.simulator.job.demand import Demand, vector_width
from foreshard.simulator.job.handed import given, received
from foreshard.simulator.job.layout import ResolvedLayout
from foreshard.simulator.job.program import Collective
from foreshard.simulator.job.scenario import Comms, Scenario
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, DataType, Dense
from foreshard.simulator.lookups.tally import state_elements_per_row
from foreshard.simulator.plans.rows import rows_held
from foreshard.simulator.step.costs import INDEX_BYTES, LENGTH_BYTES, WEIGHT_BYTES, default_constants
from foreshard.simulator.step.host_tables import HostTables, tables_in_host_memory
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.machine import Sourced

__all__ = ["BATCHES_HELD", "ITEMS", "Memory", "predict_memory", "shard_weight_bytes"]

FloatArray = NDArray[np.float64]

ITEMS: dict[str, str] = {
    "weights_sharded": "embedding shards of the rank; fully sharded over replicas, its part of them",
    "cache": "fused_uvm_caching: the cached share of the shards' rows, and what tells which rows those are",
    "weights_gathered": "fully sharded: the whole shards, while they are looked up and updated",
    "weights_replicated": "data_parallel tables, whole on every rank",
    "optimizer_sharded": "fp32 optimizer state of the shards",
    "optimizer_replicated": "fp32 optimizer state of data_parallel tables",
    "gradients_replicated": "fp32 gradients of data_parallel tables, as large as the tables",
    "dense_parameters": "fp32 parameters of the dense model",
    "dense_gradients": "fp32 gradients of the dense model",
    "dense_optimizer": "two fp32 moments of the dense model (Adam, as in the step program)",
    "gradient_buckets": "DistributedDataParallel's buckets: one more copy of all dense gradients",
    "input_batches": "batches held by the pipeline: ids, lengths and dense features",
    "input_dist": "ids and lengths permuted for sending and those received from the sharding group",
    "output_forward": "vectors leaving the lookup and vectors received, with their encoded copies",
    "output_backward": "gradients of vectors sent back and received, with their encoded copies",
    "activations": "inputs and outputs of the dense layers, kept for the backward; they use gathered weights' place",
    "replica_sync": "rows and gradients exchanged between replicas",
    "runtime_reserve": "CUDA context and NCCL buffers",
}

# Batches in flight: meta-pytorch/torchrec TrainPipelineBase copies the next batch under this one's step,
# TrainPipelineSparseDist also distributes the ids of the next one and copies the one after it.
BATCHES_HELD = {"base": 2, "sparse_dist": 3}

_ADAM_MOMENTS = 2
_PEERS_MEASURED = 7  # the all-to-all reserve was seen on 8 GPUs; with one peer the context's figure already holds it


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Memory:
    """HBM in bytes: `items` by name, each [ranks], and what a rank has, `hbm_cap_bytes` [ranks].

    `host_bytes` [nodes] are the tables in host memory, `host_cap_bytes` [nodes] all that a node has.
    """

    items: Mapping[str, FloatArray]
    hbm_cap_bytes: FloatArray
    host_bytes: FloatArray = field(default_factory=lambda: np.zeros(1))
    host_cap_bytes: FloatArray = field(default_factory=lambda: np.zeros(1))

    @property
    def per_rank_bytes(self) -> FloatArray:
        """The sum of all items in bytes, [ranks]."""
        return np.asarray(np.sum(list(self.items.values()), axis=0), dtype=np.float64)

    @property
    def weight_bytes(self) -> FloatArray:
        """Embedding weights alone in bytes, [ranks]: memory "before overhead"."""
        names = ("weights_sharded", "cache", "weights_gathered", "weights_replicated")
        return np.asarray(np.sum([self.items[name] for name in names], axis=0), dtype=np.float64)

    @property
    def fits(self) -> bool:
        """Whether every rank's items fit in its HBM, and every node's tables in its host memory."""
        return self.fits_hbm and self.fits_host

    @property
    def fits_hbm(self) -> bool:
        """Whether every rank's items fit in its HBM."""
        return bool(np.all(self.per_rank_bytes <= self.hbm_cap_bytes))

    @property
    def fits_host(self) -> bool:
        """Whether every node's tables in host memory fit there."""
        return bool(np.all(self.host_bytes <= self.host_cap_bytes))

    @property
    def peak_node(self) -> int:
        """The node whose host memory has least left beside its tables, or lacks most."""
        return int(np.argmax(self.host_bytes - self.host_cap_bytes))

    @property
    def fits_before_overhead(self) -> bool:
        """Whether the embedding weights alone would fit: the calculation that forgets everything else."""
        return bool(np.all(self.weight_bytes <= self.hbm_cap_bytes))

    @property
    def peak_rank(self) -> int:
        """The rank that uses the largest share of its HBM; the lowest of several."""
        return int(np.argmax(self.per_rank_bytes / self.hbm_cap_bytes))

    def to_dict(self) -> dict[str, object]:
        """JSON values in bytes; `items` and `hbm_cap_bytes` are those of the peak rank."""
        peak = self.peak_rank
        return {
            "fits": self.fits,
            "fits_before_overhead": self.fits_before_overhead,
            "hbm_cap_bytes": float(self.hbm_cap_bytes[peak]),
            "peak_rank": peak,
            "per_rank_bytes": self.per_rank_bytes.tolist(),
            "items": {name: float(values[peak]) for name, values in self.items.items()},
            "fits_hbm": self.fits_hbm,
            "fits_host": self.fits_host,
            "host_bytes": self.host_bytes.tolist(),
            "host_cap_bytes": self.host_cap_bytes.tolist(),
        }


def predict_memory(
    scenario: Scenario,
    cluster: Cluster,
    layout: ResolvedLayout,
    sharded: tuple[ShardedTable, ...],
    demand: Demand,
    constants: Mapping[str, Sourced] | None = None,
) -> Memory:
    """Return the HBM of every rank item by item, and host memory of every node, in bytes.

    `constants` replaces shipped ones by name.
    """
    known = {**default_constants(), **(constants or {})}
    moved = tables_in_host_memory(sharded, layout, scenario.execution.optimizer)
    tables = _embedding_items(scenario, layout, sharded, demand, moved)
    activations = _activation_bytes(scenario.workload.dense, scenario.workload.batch_size)
    items = {
        **tables,
        **_dense_items(scenario, demand),
        **_input_items(scenario, demand),
        **_output_items(scenario.comms, sharded, demand),
        "activations": np.maximum(0.0, activations - tables["weights_gathered"]),
        "replica_sync": _replica_bytes(scenario, layout, demand),
        "runtime_reserve": _reserve(cluster, layout, demand, known),
    }
    ranks = layout.world_size
    caps = np.array([gpu.hbm_bytes for gpu in cluster.gpus], dtype=np.float64)[cluster.gpu_index]
    spread = {name: np.broadcast_to(np.asarray(items[name], dtype=np.float64), (ranks,)) for name in ITEMS}
    host = np.bincount(cluster.node_of, weights=moved.weights + moved.state, minlength=cluster.nodes)
    return Memory(
        items=spread, hbm_cap_bytes=caps, host_bytes=host.astype(np.float64), host_cap_bytes=cluster.host_memory_bytes
    )


# -- tables ------------------------------------------------------------------------------------------------------


def shard_weight_bytes(table: ShardedTable, group_size: int) -> FloatArray:
    """Bytes of a table's weights at each position of the sharding group, [positions]."""
    if table.sharding == "data_parallel":
        return np.full(group_size, float(table.table.nbytes))
    sizes = np.outer(np.diff(table.col_bounds), rows_held(table)) * float(BYTES_PER_ELEMENT[table.table.data_type])
    return np.asarray(np.bincount(table.owners.ravel(), sizes.ravel(), minlength=group_size), dtype=np.float64)


def _embedding_items(
    scenario: Scenario, layout: ResolvedLayout, sharded: tuple[ShardedTable, ...], demand: Demand, moved: HostTables
) -> dict[str, FloatArray]:
    zero = np.zeros(layout.world_size)
    state = sum((family.state_elements for family in demand.families), start=zero)
    whole = [cut.table for cut in sharded if cut.sharding == "data_parallel"]
    optimizer = scenario.execution.optimizer
    rows = [table.num_embeddings * state_elements_per_row(optimizer, table.embedding_dim) for table in whole]
    return {
        **_shard_items(scenario, layout, demand, moved),
        "cache": moved.cache,
        "weights_replicated": zero + sum(table.nbytes for table in whole),
        "optimizer_sharded": FULL_BYTES * state - moved.state,
        "optimizer_replicated": zero + FULL_BYTES * sum(rows),
    }


def _shard_items(
    scenario: Scenario, layout: ResolvedLayout, demand: Demand, moved: HostTables
) -> dict[str, FloatArray]:
    """Shards' weights. Fully sharded, a rank keeps 1 / replicas of them, and has the whole while it is used besides.

    Peak shard + shard / replicas, then shard / replicas: meta-pytorch/torchrec pull request 3558. Weights that do not
    divide evenly are copied to be padded (torchrec 1.9.2, ShardedBatchedFusedEmbeddingBag).
    """
    zero = np.zeros(layout.world_size)
    whole = sum((family.weight_bytes for family in demand.families), start=zero)
    if layout.replicas == 1 or scenario.layout.sync != "fully_sharded":
        return {"weights_sharded": whole - moved.weights, "weights_gathered": zero}
    uneven = [np.where(f.weight_elements % layout.replicas, f.weight_bytes, 0.0) for f in demand.families]
    return {"weights_sharded": whole / layout.replicas, "weights_gathered": whole + sum(uneven, start=zero)}


# -- the dense model ---------------------------------------------------------------------------------------------


def _dense_items(scenario: Scenario, demand: Demand) -> dict[str, float]:
    dense = float(scenario.workload.dense.num_parameters * FULL_BYTES)
    replicated = float(demand.data_parallel_elements * FULL_BYTES)
    alone = demand.world_size == 1  # DistributedDataParallel needs a second rank
    return {
        "gradients_replicated": replicated,
        "dense_parameters": dense,
        "dense_gradients": dense,
        "dense_optimizer": _ADAM_MOMENTS * dense,
        "gradient_buckets": 0.0 if alone else dense + replicated,
    }


def _activation_bytes(dense: Dense, batch_size: int) -> float:
    """Bytes that autograd keeps of the dense model: the input of every chain of layers and the output of every layer.

    A model given in sum is taken as its kernels (one, if not given) of equal width w with 2 w^2 FLOPs each.
    """
    width = BYTES_PER_ELEMENT[dense.data_type]
    if dense.layers and dense.forward_flops_per_sample is None:
        return float(batch_size * width * sum(sum(chain) for chain in dense.layers))
    layers = dense.kernels or 1
    return batch_size * width * (layers + 1) * math.sqrt(dense.flops_per_sample / (2 * layers))


# -- ids and vectors ---------------------------------------------------------------------------------------------


def _input_items(scenario: Scenario, demand: Demand) -> dict[str, FloatArray]:
    held = BATCHES_HELD[scenario.execution.pipeline]
    batch = demand.batch_ids * INDEX_BYTES + demand.batch_lengths * LENGTH_BYTES
    batch = batch + (demand.batch_ids * WEIGHT_BYTES if demand.weighted else 0.0)
    batch = batch + float(scenario.workload.batch_size * scenario.workload.dense.input_features * FULL_BYTES)
    dist = np.zeros(demand.world_size)
    for family in demand.families:
        of_id = INDEX_BYTES + (WEIGHT_BYTES if demand.sends_weights(family) else 0)
        for collective, width in ((family.ids, of_id), (family.lengths, LENGTH_BYTES)):
            dist += width * (given(collective) + (held - 1) * received(collective))
        if family.own is not None:
            dist += held * INDEX_BYTES * family.own.ids  # the way back from distinct ids, until the vectors are there
    return {"input_batches": held * batch, "input_dist": dist}


def _output_items(comms: Comms, sharded: tuple[ShardedTable, ...], demand: Demand) -> dict[str, FloatArray]:
    forward, backward = np.zeros(demand.world_size), np.zeros(demand.world_size)
    for family in demand.families:
        dim = vector_width(family, sharded)
        first = family.output[0].kind
        forward += _exchange_bytes(family.output, _element_bytes(carried(first, comms.forward), dim))
        backward += _exchange_bytes(family.output, _element_bytes(carried(first, comms.backward), dim))
        if family.own is not None:  # what the batch owner makes of distinct vectors, and its gradient
            forward += family.own.outputs * FULL_BYTES
            backward += family.own.outputs * FULL_BYTES
    replicated = demand.data_parallel.outputs * FULL_BYTES
    return {"output_forward": forward + replicated, "output_backward": backward + replicated}


def _element_bytes(precision: DataType, row_dim: float) -> float:
    """Bytes an element of a buffer of vectors, with its encoded copy if there is a codec."""
    return FULL_BYTES + (0.0 if precision == "fp32" else wire_bytes(precision, row_dim))


def _exchange_bytes(hops: tuple[Collective, ...], element_bytes: float) -> FloatArray:
    """Send buffer of the first hop and receive buffer of each; backward mirrors them, so its buffers are as large."""
    return element_bytes * (given(hops[0]) + sum(received(hop) for hop in hops))


def _replica_bytes(scenario: Scenario, layout: ResolvedLayout, demand: Demand) -> FloatArray:
    """Weights are averaged in place; gradients are packed with their row ids and gathered from all replicas."""
    total = np.zeros(layout.world_size)
    if layout.replicas == 1 or scenario.layout.sync != "gradients":
        return total
    for replica in demand.replica_rounds:
        own = replica.touched_rows * INDEX_BYTES + replica.touched_elements * FULL_BYTES
        total += own + np.bincount(replica.groups.group_of, weights=own)[replica.groups.group_of]
    return total


# -- the runtime -------------------------------------------------------------------------------------------------


def _reserve(cluster: Cluster, layout: ResolvedLayout, demand: Demand, constants: Mapping[str, Sourced]) -> FloatArray:
    """Context, NCCL's all-to-all buffers by peers without a NIC between, and further communicators of a 2D layout.

    Seen: 1.1 GB with one peer and 3.28 GB more with seven; between them in proportion, beyond seven constant.
    """
    group = layout.sharding.group_of * (int(cluster.domain_of.max()) + 1) + cluster.domain_of
    _, index, counts = np.unique(group, return_inverse=True, return_counts=True)
    peers = np.minimum(counts[index.ravel()] - 1, _PEERS_MEASURED) if demand.families else np.zeros(layout.world_size)
    exchange = constants["all_to_all_reserve"].value * np.maximum(peers - 1, 0) / (_PEERS_MEASURED - 1)
    further = _further(layout, demand) * constants["communicator_reserve"].value
    return constants["context_reserve"].value + exchange + further


def _further(layout: ResolvedLayout, demand: Demand) -> FloatArray:
    """Communicators of a rank besides its sharding group's: the world's, and one for each set of replicas it is in."""
    if layout.replicas == 1:
        return np.zeros(layout.world_size)
    sizes = [replica.groups.sizes[replica.groups.group_of] for replica in demand.replica_rounds]
    return np.asarray(1.0 + np.sum([size > 1 for size in sizes], axis=0), dtype=np.float64)

"""What work costs on one rank: roofline terms with floors, from the GPU's datasheet and sourced constants."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.codecs import FULL_BYTES, codec_bytes
from foreshard.simulator.job.demand import BatchOwnerDemand, LocalDemand, ReplicaDemand
from foreshard.simulator.job.program import HostCopy
from foreshard.simulator.job.work import Work, WorkKind
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, DataType, Dense
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.machine import Sourced

__all__ = ["INDEX_BYTES", "LENGTH_BYTES", "WEIGHT_BYTES", "CostModel", "cpu_constants", "default_constants"]

FloatArray = NDArray[np.float64]

INDEX_BYTES = 8  # int64 ids, as TorchRec's KeyedJaggedTensor carries them
LENGTH_BYTES = 4  # int32 lengths
WEIGHT_BYTES = 4  # fp32 weights of ids, which KeyedJaggedTensor.dist_tensors sends after the values


@cache
def default_constants() -> Mapping[str, Sourced]:
    """The shipped constants by name, each with value, unit and source."""
    return _constants_of("costs.toml")


@cache
def cpu_constants() -> Mapping[str, Sourced]:
    """Those that take another value where ranks are processes on CPUs; assumed, not measured."""
    return _constants_of("cpu_costs.toml")


def _constants_of(name: str) -> Mapping[str, Sourced]:
    text = files("foreshard.simulator").joinpath("data", name).read_text(encoding="utf-8")
    return MappingProxyType({name: Sourced(**entry) for name, entry in tomllib.loads(text).items()})


class CostModel:
    """What each kind of work is counted in and takes on the GPUs of a cluster, by one method a kind.

    Modelled times are floored by a kernel's shortest run.
    """

    def __init__(self, cluster: Cluster, constants: Mapping[str, Sourced] | None = None) -> None:
        of_cpu = cpu_constants() if cluster.on_cpu else {}
        self.constants: Mapping[str, Sourced] = {**default_constants(), **of_cpu, **(constants or {})}
        self._cluster = cluster
        self._hbm = self._per_rank([gpu.hbm_bytes_per_s for gpu in cluster.gpus])

    def __getitem__(self, name: str) -> float:
        """The value of one constant."""
        return self.constants[name].value

    def _per_rank(self, per_gpu_kind: list[float]) -> FloatArray:
        return np.asarray(per_gpu_kind, dtype=np.float64)[self._cluster.gpu_index]

    def launching(self, launches: float, works: Iterable[Work]) -> float:
        """Host seconds to issue works as `launches` kernels."""
        return launches * self["host_per_kernel"]

    def issue(self) -> float:
        """Host seconds to launch one collective."""
        return self["host_per_collective"]

    def work(self, kind: WorkKind, counts: Mapping[str, FloatArray | float], modelled_s: FloatArray) -> Work:
        """Return the work of one kind with its features, [ranks], and what it takes: here what the model says."""
        spread = {name: self._per_ranks(count) for name, count in counts.items()}
        busy = np.any([count > 0 for count in spread.values()], axis=0).astype(np.float64)
        return Work(kind=kind, counts={"calls": busy, **spread}, seconds=modelled_s)

    def _per_ranks(self, values: FloatArray | float) -> FloatArray:
        """One value for all, or one a rank, as [ranks]."""
        return np.broadcast_to(np.asarray(values, dtype=np.float64), (self._cluster.size,))

    # -- ids ---------------------------------------------------------------------------------------------------

    def copy_in(self, nbytes: FloatArray) -> Work:
        """Host-to-device copy of `nbytes` [ranks]: nothing beside its way over the links, which `copies_in` tells."""
        return self.work("copy_in", {"bytes": nbytes}, np.zeros(self._cluster.size))

    def copies_in(self, nbytes: FloatArray) -> tuple[HostCopy, ...]:
        """What `copy_in` puts on the host's links, no shorter than a kernel's shortest run."""
        return (HostCopy(nbytes=nbytes, floor_s=self["kernel_floor"]),)

    def permute(self, ids: FloatArray, lengths: FloatArray) -> Work:
        """Putting the ids of the own batch in the order of their owners: each read and written once."""
        return self.work("permute", {"ids": ids, "lengths": lengths}, self._stream(2 * INDEX_BYTES * ids))

    def recat(self, ids: FloatArray, lengths: FloatArray) -> Work:
        """Putting the ids that came in the order of the tables: each read and written once."""
        return self.work("recat", {"ids": ids, "lengths": lengths}, self._stream(2 * INDEX_BYTES * ids))

    def dedup(self, own: BatchOwnerDemand) -> Work:
        """Making the ids of the own batch distinct, with the way back, by sorting them."""
        return self.work("dedup", {"ids": own.ids}, self._stream(own.ids * self["dedup_bytes"]))

    # -- rows --------------------------------------------------------------------------------------------------

    def lookup(self, local: LocalDemand, output_bytes: float) -> Work:
        """Reading rows and ids, writing outputs of `output_bytes` an element, at the lookup kernels' share of HBM."""
        moved = local.lookups * INDEX_BYTES + local.lookup_bytes + local.outputs * output_bytes
        seconds = self._floored(moved / (self._hbm * self["lookup_efficiency"]))
        return self.work("lookup", _row_counts(local, output_bytes), seconds)

    def update(self, local: LocalDemand, gradient_bytes: float) -> Work:
        """Backward with fused optimizer, at the update kernels' share of HBM.

        Counted as FBGEMM counts it when it reports that share: twice the forward's bytes (ids, one row per lookup,
        the gradients of the outputs).
        """
        moved = local.lookups * INDEX_BYTES + local.lookup_bytes + local.outputs * gradient_bytes
        seconds = self._floored(2 * moved / self._update_rate)
        return self.work("update", _row_counts(local, gradient_bytes), seconds)

    def sum_by_row(self, local: LocalDemand, gradient_bytes: float) -> Work:
        """Summing gradients row by row without touching the rows, at the update kernels' share of HBM.

        Ids, gradients of the outputs, one gradient row per lookup, and the sums of the distinct rows, each moved once.
        """
        moved = local.lookups * INDEX_BYTES + local.lookup_bytes + local.outputs * gradient_bytes
        seconds = self._floored((moved + local.distinct_elements * gradient_bytes) / self._update_rate)
        return self.work("sum_by_row", _row_counts(local, gradient_bytes), seconds)

    def clear(self, nbytes: float) -> Work:
        """Filling `nbytes` with zeros."""
        return self.work("clear", {"bytes": nbytes}, self._stream(nbytes))

    def replica_update(self, gathered_bytes: FloatArray, replicas: Sequence[ReplicaDemand]) -> Work:
        """Applying what all replicas gathered: read it, read and write the rows, write their sums."""
        rows, row_bytes = np.zeros(self._cluster.size), np.zeros(self._cluster.size)
        moved = np.zeros(self._cluster.size)
        for gathered, replica in zip(gathered_bytes, replicas, strict=True):
            moved += gathered + 3 * replica.union_elements * FULL_BYTES
            rows += replica.union_rows
            row_bytes += replica.union_elements * FULL_BYTES
        counts = {"gathered_bytes": gathered_bytes.sum(axis=0), "rows": rows, "row_bytes": row_bytes}
        return self.work("replica_update", counts, moved / self._update_rate)

    def pad(self, nbytes: FloatArray) -> Work:
        """Copying `nbytes` [ranks] of weights to pad them."""
        return self.work("pad", {"bytes": nbytes}, self._stream(2 * nbytes))

    def fetch(self, local: LocalDemand) -> tuple[HostCopy, ...]:
        """The rows that a lookup does not find in HBM, brought in on demand before it reads them: nothing hides it.

        None without tables in host memory.
        """
        return (HostCopy(nbytes=local.host_reads),) if local.host_reads.any() else ()

    def write_back(self, local: LocalDemand) -> tuple[HostCopy, ...]:
        """What an update still lacks, read from host memory, and the updated rows and state, written back to it."""
        read = HostCopy(nbytes=local.host_update_reads)
        written = HostCopy(nbytes=local.host_writes, direction="from_device")
        return tuple(copy for copy in (read, written) if copy.nbytes.any())

    # -- vectors -----------------------------------------------------------------------------------------------

    def join(self, nbytes: FloatArray) -> Work:
        """Putting `nbytes` [ranks] of vectors that came side by side: read and written once."""
        return self.work("join", {"bytes": nbytes}, self._stream(2 * nbytes))

    def from_distinct(self, own: BatchOwnerDemand) -> Work:
        """Pooling or expanding distinct vectors: a look-up in what came, by the way back, at look-ups' share of HBM."""
        counts = _distinct_counts(own, own.outputs)
        moved = own.ids * INDEX_BYTES + (counts["gathered_bytes"] + counts["vector_bytes"])
        return self.work("from_distinct", counts, self._floored(moved / (self._hbm * self["lookup_efficiency"])))

    def to_distinct(self, own: BatchOwnerDemand, elements: FloatArray) -> Work:
        """Summing a gradient for each id to `elements` [ranks] of distinct rows, counted as `update` counts."""
        counts = _distinct_counts(own, elements)
        moved = own.ids * INDEX_BYTES + (counts["gathered_bytes"] + counts["vector_bytes"])
        return self.work("to_distinct", counts, self._floored(2 * moved / self._update_rate))

    def encode(self, elements: FloatArray, held: DataType, wire: DataType, row_dim: float) -> Work:
        """Turning `elements` [ranks] of vectors of `row_dim` into what goes on the wire, from what they are held in."""
        nbytes = elements * (codec_bytes(held, row_dim) + codec_bytes(wire, row_dim))
        counts = {"bytes": nbytes, **_elements(elements, held), **_elements(elements, wire)}
        return self.work("encode", counts, self._stream(nbytes))

    def decode(self, elements: FloatArray, held: DataType, row_dim: float) -> Work:
        """Turning `elements` [ranks] back into fp32."""
        nbytes = elements * codec_bytes(held, row_dim)
        return self.work("decode", {"bytes": nbytes, **_elements(elements, held)}, self._stream(nbytes))

    # -- the dense model ---------------------------------------------------------------------------------------

    def dense_forward(self, dense: Dense, batch_size: int, vector_bytes: FloatArray) -> Work:
        """The dense forward on `batch_size` samples, no shorter than its kernels; `vector_bytes` [ranks] come in."""
        floor = self.forward_launches(dense) * self["kernel_floor"]
        seconds = np.maximum(self._gemms(dense, batch_size, products=1), floor)
        return self.work("dense_forward", _dense_counts(dense, batch_size, vector_bytes, products=1), seconds)

    def dense_backward(self, dense: Dense, batch_size: int, vector_bytes: FloatArray) -> Work:
        """The dense backward: of a matrix product it is two products of the same size."""
        floor = self.backward_launches(dense) * self["kernel_floor"]
        seconds = np.maximum(self._gemms(dense, batch_size, products=2), floor)
        return self.work("dense_backward", _dense_counts(dense, batch_size, vector_bytes, products=2), seconds)

    def dense_optimizer(self, elements: float, replicated: float, accesses: float) -> Work:
        """Stepping `elements` dense and `replicated` table parameters, `accesses` fp32 elements read and written."""
        counts = {"elements": elements, "replicated_elements": replicated}
        return self.work("dense_optimizer", counts, self._stream(accesses * FULL_BYTES))

    def _gemms(self, dense: Dense, batch_size: int, *, products: int) -> FloatArray:
        """The dense model on `batch_size` samples: per layer the larger of FLOPs over peak and bytes over HBM."""
        peak = self._flops(dense.data_type) * self["gemm_efficiency"]
        width = BYTES_PER_ELEMENT[dense.data_type]
        if dense.forward_flops_per_sample is not None or not dense.linears:
            flops = dense.flops_per_sample * batch_size
            moved = float(dense.num_parameters * width)
            return products * np.maximum(flops / peak, moved / self._hbm)
        total = np.zeros(self._cluster.size)
        for inputs, outputs in dense.linears:
            flops = 2.0 * inputs * outputs * batch_size
            moved = width * (inputs * outputs + batch_size * (inputs + outputs))
            total += products * np.maximum(flops / peak, moved / (self._hbm * self["stream_efficiency"]))
        return total

    def forward_launches(self, dense: Dense) -> int:
        """Kernels the host launches in the dense forward."""
        per_layer = self["linear_forward_launches"] * len(dense.linears)
        return round(self["model_forward_launches"] + (per_layer if dense.kernels is None else dense.kernels))

    def backward_launches(self, dense: Dense) -> int:
        """Kernels the host launches in the dense backward; for a model given in sum, in the layers' proportion."""
        if dense.kernels is None:
            per_model = self["linear_backward_launches"] * len(dense.linears)
        else:
            per_model = dense.kernels * self["linear_backward_launches"] / self["linear_forward_launches"]
        return round(self["model_backward_launches"] + per_model)

    def _flops(self, data_type: DataType) -> FloatArray:
        missing = sorted({gpu.name for gpu in self._cluster.gpus if data_type not in gpu.flops})
        if missing:
            raise InputError(f"workload.dense.data_type = {data_type!r} has no FLOP/s figure for {', '.join(missing)}")
        return self._per_rank([gpu.flops[data_type] for gpu in self._cluster.gpus])

    @property
    def _update_rate(self) -> FloatArray:
        """Bytes/s at which update kernels move rows, [ranks]."""
        return self._hbm * self["update_efficiency"]

    def _stream(self, nbytes: FloatArray | float) -> FloatArray:
        """Seconds to read and write `nbytes` [ranks] of HBM in order."""
        return self._floored(nbytes / (self._hbm * self["stream_efficiency"]))

    def _floored(self, seconds: FloatArray | float) -> FloatArray:
        """At least a kernel's shortest run where there is any work, [ranks]."""
        values = np.broadcast_to(np.asarray(seconds, dtype=np.float64), (self._cluster.size,))
        return np.where(values > 0, np.maximum(values, self["kernel_floor"]), 0.0)


def _row_counts(local: LocalDemand, vector_bytes: float) -> dict[str, FloatArray | float]:
    """Features of look-ups and updates; `vector_bytes` an element."""
    return {
        "tables": local.tables,
        "lookups": local.lookups,
        "row_bytes": local.lookup_bytes,
        "vector_bytes": local.outputs * vector_bytes,
        "distinct_rows": local.distinct_rows,
        "distinct_elements": local.distinct_elements,
    }


def _distinct_counts(own: BatchOwnerDemand, written: FloatArray) -> dict[str, FloatArray]:
    """Features of pooling from distinct vectors and of the way back, which writes `written` elements."""
    return {"ids": own.ids, "gathered_bytes": own.gathered * FULL_BYTES, "vector_bytes": written * FULL_BYTES}


def _elements(elements: FloatArray, data_type: DataType) -> dict[str, FloatArray]:
    """The feature that counts elements of a type on the wire; fp32 is not coded."""
    return {} if data_type == "fp32" else {f"{data_type}_elements": elements}


def _dense_counts(
    dense: Dense, batch_size: int, vector_bytes: FloatArray, *, products: int
) -> dict[str, FloatArray | float]:
    """Features of the dense model on `batch_size` samples, in `products` matrix products a layer."""
    width = BYTES_PER_ELEMENT[dense.data_type]
    return {
        "layers": float(len(dense.linears)),
        "flops": float(products * dense.flops_per_sample * batch_size),
        "weight_bytes": float(dense.num_parameters * width),
        "activation_bytes": float(width * batch_size * sum(sum(linear) for linear in dense.linears)),
        "vector_bytes": vector_bytes,
    }

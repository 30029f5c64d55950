"""What work costs on one rank: roofline terms with floors, from the GPU's datasheet and sourced constants."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.codecs import FULL_BYTES
from foreshard.simulator.job.demand import BatchOwnerDemand, LocalDemand
from foreshard.simulator.job.workload import BYTES_PER_ELEMENT, DataType, Dense
from foreshard.topologies.cluster import Cluster
from foreshard.topologies.errors import InputError
from foreshard.topologies.machine import Sourced

__all__ = ["INDEX_BYTES", "LENGTH_BYTES", "CostModel", "default_constants"]

FloatArray = NDArray[np.float64]

INDEX_BYTES = 8  # int64 ids, as TorchRec's KeyedJaggedTensor carries them
LENGTH_BYTES = 4  # int32 lengths


@cache
def default_constants() -> Mapping[str, Sourced]:
    """The shipped constants by name, each with value, unit and source."""
    text = files("foreshard.simulator").joinpath("data/costs.toml").read_text(encoding="utf-8")
    return MappingProxyType({name: Sourced(**entry) for name, entry in tomllib.loads(text).items()})


class CostModel:
    """Seconds of each kind of work, [ranks], on the GPUs of a cluster; times are floored by a kernel's shortest run."""

    def __init__(self, cluster: Cluster, constants: Mapping[str, Sourced] | None = None) -> None:
        self.constants: Mapping[str, Sourced] = {**default_constants(), **(constants or {})}
        self._cluster = cluster
        self._hbm = self._per_rank([gpu.hbm_bytes_per_s for gpu in cluster.gpus])

    def __getitem__(self, name: str) -> float:
        """The value of one constant."""
        return self.constants[name].value

    def _per_rank(self, per_gpu_kind: list[float]) -> FloatArray:
        return np.asarray(per_gpu_kind, dtype=np.float64)[self._cluster.gpu_index]

    def host(self, launches: float) -> float:
        """Host seconds to issue `launches` kernels."""
        return launches * self["host_per_kernel"]

    def copy_in(self, nbytes: FloatArray) -> FloatArray:
        """Host-to-device copy of `nbytes` [ranks]: bytes over the PCIe rate seen in practice; free without a host."""
        return self._floored(_over(nbytes, self._cluster.host_to_device_bytes_per_s))

    def stream(self, nbytes: FloatArray | float) -> FloatArray:
        """Reading and writing `nbytes` [ranks] of HBM in order."""
        return self._floored(nbytes / (self._hbm * self["stream_efficiency"]))

    def lookup(self, local: LocalDemand, output_bytes: float) -> FloatArray:
        """Reading rows and ids, writing outputs of `output_bytes` an element, at the lookup kernels' share of HBM."""
        moved = local.lookups * INDEX_BYTES + local.lookup_bytes + local.outputs * output_bytes
        return self._floored(moved / (self._hbm * self["lookup_efficiency"]))

    def fetch(self, local: LocalDemand) -> FloatArray:
        """Bringing in the rows that a lookup does not find in HBM, at the rate when all ranks pull at once.

        Fetched on demand, before the lookup reads them: nothing hides it. 0 without tables in host memory.
        """
        return _over(local.host_reads, self._cluster.host_to_device_bytes_per_s)

    def write_back(self, local: LocalDemand) -> FloatArray:
        """Writing updated rows and state back to host memory, after reading what the update still lacks."""
        read = _over(local.host_update_reads, self._cluster.host_to_device_bytes_per_s)
        return read + _over(local.host_writes, self._cluster.device_to_host_bytes_per_s)

    @property
    def update_rate(self) -> FloatArray:
        """Bytes/s at which update kernels move rows, [ranks]."""
        return self._hbm * self["update_efficiency"]

    def update(self, local: LocalDemand, gradient_bytes: float) -> FloatArray:
        """Backward with fused optimizer, at the update kernels' share of HBM.

        Counted as FBGEMM counts it when it reports that share: twice the forward's bytes (ids, one row per lookup,
        the gradients of the outputs).
        """
        moved = local.lookups * INDEX_BYTES + local.lookup_bytes + local.outputs * gradient_bytes
        return self._floored(2 * moved / self.update_rate)

    def sum_by_row(self, local: LocalDemand, gradient_bytes: float) -> FloatArray:
        """Summing gradients row by row without touching the rows, at the update kernels' share of HBM.

        Ids, gradients of the outputs, one gradient row per lookup, and the sums of the distinct rows, each moved once.
        """
        moved = local.lookups * INDEX_BYTES + local.lookup_bytes + local.outputs * gradient_bytes
        return self._floored((moved + local.distinct_elements * gradient_bytes) / self.update_rate)

    def distinct(self, own: BatchOwnerDemand) -> FloatArray:
        """Making the ids of the own batch distinct, with the way back, by sorting them."""
        return self.stream(own.ids * self["dedup_bytes"])

    def from_distinct(self, own: BatchOwnerDemand) -> FloatArray:
        """Pooling or expanding distinct vectors: a look-up in what came, by the way back, at look-ups' share of HBM."""
        moved = own.ids * INDEX_BYTES + (own.gathered + own.outputs) * FULL_BYTES
        return self._floored(moved / (self._hbm * self["lookup_efficiency"]))

    def to_distinct(self, own: BatchOwnerDemand, elements: FloatArray) -> FloatArray:
        """Summing a gradient for each id to `elements` [ranks] of distinct rows, counted as `update` counts."""
        moved = own.ids * INDEX_BYTES + (own.gathered + elements) * FULL_BYTES
        return self._floored(2 * moved / self.update_rate)

    def gemms(self, dense: Dense, batch_size: int, *, backward: bool) -> FloatArray:
        """The dense model on `batch_size` samples: per layer the larger of FLOPs over peak and bytes over HBM.

        Backward of a matrix product is two products of the same size.
        """
        peak = self._flops(dense.data_type) * self["gemm_efficiency"]
        width = BYTES_PER_ELEMENT[dense.data_type]
        products = 2 if backward else 1
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

    def _floored(self, seconds: FloatArray | float) -> FloatArray:
        """At least a kernel's shortest run where there is any work, [ranks]."""
        values = np.broadcast_to(np.asarray(seconds, dtype=np.float64), (self._cluster.size,))
        return np.where(values > 0, np.maximum(values, self["kernel_floor"]), 0.0)


def _over(nbytes: FloatArray, rate: FloatArray) -> FloatArray:
    """Seconds for `nbytes` at `rate` [ranks] bytes/s; 0 where there is no host link."""
    return np.divide(nbytes, rate, out=np.zeros(len(rate)), where=rate > 0)

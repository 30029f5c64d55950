"""Builds the step program of a training job: the seven stages for every sharding kind, layout and pipeline.

The operations and their order are those recorded from TorchRec 1.9 (TrainPipelineBase and TrainPipelineSparseDist):
per sharding kind id splits, lengths and values; pooled vectors by all-to-all or reduce-scatter; the backward twins in
reverse order; the dense all-reduce. In 2D the exchanges stay in the sharding groups and replicas are synchronised.
With deduplication the batch owner makes ids distinct first, pools distinct vectors last, and mirrors both backward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshard.simulator.job.codecs import FULL_BYTES, carried, wire_bytes
from foreshard.simulator.job.demand import Demand, FamilyDemand, vector_width
from foreshard.simulator.job.handed import given, received
from foreshard.simulator.job.layout import Groups, ResolvedLayout, Sync
from foreshard.simulator.job.program import Collective, Dep, Op, Stage, StepProgram, Stream
from foreshard.simulator.job.scenario import Optimizer, Scenario
from foreshard.simulator.job.sharding import ShardedTable
from foreshard.simulator.job.traffic import PairBytes
from foreshard.simulator.job.work import Work
from foreshard.simulator.job.workload import DataType
from foreshard.simulator.step.costs import INDEX_BYTES, LENGTH_BYTES, WEIGHT_BYTES, CostModel
from foreshard.simulator.step.replica_ops import ReplicaOps, family_name

__all__ = ["build_program", "family_name"]

FloatArray = NDArray[np.float64]

_SPLIT_TENSORS = 3  # splits of keys, lengths and values travel together: 6 elements for 2 ranks as recorded

# Elements read and written per parameter: gradient and parameter, and the state, which row-wise AdaGrad keeps per row.
_ACCESSES: dict[Optimizer, int] = {"sgd": 3, "rowwise_adagrad": 3, "adagrad": 5, "adam": 7}
_WARMUP = {"base": 2, "sparse_dist": 3}


def build_program(
    scenario: Scenario,
    layout: ResolvedLayout,
    sharded: tuple[ShardedTable, ...],
    demand: Demand,
    costs: CostModel,
    *,
    sync: Sync | None,
) -> StepProgram:
    """Return the program of one steady-state step; `sync` says how replicas are synchronised in it (None: not)."""
    builder = _Builder(
        scenario=scenario,
        layout=layout,
        sharded=sharded,
        demand=demand,
        sync=sync if layout.replicas > 1 else None,
        costs=costs,
        steps=scenario.comms.all_to_all,
    )
    ops = builder.sparse_dist() if scenario.execution.pipeline == "sparse_dist" else builder.base()
    return StepProgram(world_size=layout.world_size, ops=ops, warmup_steps=_WARMUP[scenario.execution.pipeline])


@dataclass(slots=True, kw_only=True)
class _Builder(ReplicaOps):
    scenario: Scenario
    sharded: tuple[ShardedTable, ...]

    # -- pipelines: the order in which the host issues one step ------------------------------------------------

    def base(self) -> tuple[Op, ...]:
        """TrainPipelineBase: only the copy of the next batch overlaps; each split exchange stops the host."""
        for family in self.demand.families:
            self.splits([family], suffix=family_name(family), batch=0)
        for family in self.demand.families:
            self.tensors(family, batch=0, waits=f"input_dist.splits.{family_name(family)}")
        self.forward(routed_steps_back=0)
        self.copy_batch(ahead=1)
        self.backward()
        return tuple(self.ops)

    def sparse_dist(self) -> tuple[Op, ...]:
        """TrainPipelineSparseDist: input_dist of batch i + 1 under forward and backward of i, copy of i + 2."""
        self.splits(self.demand.families, suffix="fused", batch=1)
        self.copy_batch(ahead=2)
        self.forward(routed_steps_back=1)
        for family in self.demand.families:
            self.tensors(family, batch=1, waits="input_dist.splits.fused")
        self.backward()
        return tuple(self.ops)

    @property
    def routing_stream(self) -> Stream:
        """Where ids are permuted: a stream of its own under sparse_dist, in line with the forward under base."""
        return "data_dist" if self.scenario.execution.pipeline == "sparse_dist" else "compute"

    # -- stage 1 and 2 -----------------------------------------------------------------------------------------

    def copy_batch(self, *, ahead: int) -> None:
        dense_inputs = self.scenario.workload.dense.input_features
        of_id = INDEX_BYTES + (WEIGHT_BYTES if self.demand.weighted else 0)
        nbytes = self.demand.batch_ids * of_id + self.demand.batch_lengths * LENGTH_BYTES
        nbytes = nbytes + self.scenario.workload.batch_size * dense_inputs * FULL_BYTES
        self.compute(
            "copy_batch_to_device", "batch_input", "copy", (self.costs.copy_in(nbytes),),
            self.costs["copy_batch_launches"], batch=ahead, copies=self.costs.copies_in(nbytes),
        )  # fmt: skip

    def splits(self, families: tuple[FamilyDemand, ...] | list[FamilyDemand], *, suffix: str, batch: int) -> None:
        """Permute or bucketise the ids of the batch and tell every peer how many come (the host needs the answer)."""
        if not families:
            return
        copied = (Dep("copy_batch_to_device", 1),)
        for family in families:
            if family.own is not None:
                self.compute(
                    f"input_dist.dedup.{family_name(family)}", "lookup_routing", self.routing_stream,
                    (self.costs.dedup(family.own),), self.costs["dedup_launches"], deps=copied, batch=batch,
                )  # fmt: skip
            work = self.costs.permute(given(family.ids) * self._moved(family), given(family.lengths))
            self.compute(
                f"input_dist.permute.{family_name(family)}", "lookup_routing", self.routing_stream,
                (work,), self.costs["input_dist_launches"], deps=copied, batch=batch,
            )  # fmt: skip
        tensors = sum(_SPLIT_TENSORS + self.demand.sends_weights(family) for family in families)
        size = float(tensors * INDEX_BYTES)
        groups = self.layout.sharding
        traffic = tuple(PairBytes.uniform(len(group), size * len(group)) for group in _distinct(groups))
        last = f"input_dist.permute.{family_name(families[-1])}"
        self.collective(
            f"input_dist.splits.{suffix}", "lookup_routing", "comm",
            Collective(kind="all_to_all", groups=groups, traffic=traffic), deps=(Dep(last),), batch=batch,
        )  # fmt: skip

    def tensors(self, family: FamilyDemand, *, batch: int, waits: str) -> None:
        """Lengths, then values and their weights, then putting what came in table order (recat)."""
        name = family_name(family)
        self.collective(
            f"input_dist.lengths.{name}", "lookup_routing", "comm", family.lengths.scaled(LENGTH_BYTES),
            batch=batch, waits=(Dep(waits),),
        )  # fmt: skip
        self.collective(
            f"input_dist.values.{name}", "lookup_routing", "comm", family.ids.scaled(INDEX_BYTES), batch=batch
        )
        last = f"input_dist.values.{name}"
        if self.demand.sends_weights(family):
            last = f"input_dist.weights.{name}"
            self.collective(last, "lookup_routing", "comm", family.ids.scaled(WEIGHT_BYTES), batch=batch)
        work = self.costs.recat(received(family.ids) * self._moved(family), received(family.lengths))
        self.compute(
            f"input_dist.recat.{name}", "lookup_routing", self.routing_stream, (work,),
            self.costs["recat_launches"], deps=(Dep(last),), batch=batch,
        )  # fmt: skip

    def _moved(self, family: FamilyDemand) -> float:
        """What of each id is put in order, counted in ids: weights are half as wide."""
        return 1 + WEIGHT_BYTES / INDEX_BYTES if self.demand.sends_weights(family) else 1.0

    # -- stage 3 and the forward of stage 4 --------------------------------------------------------------------

    def forward(self, *, routed_steps_back: int) -> None:
        """Look up, return vectors, and run the dense forward once every vector of the rank's own batch is there."""
        synced = self._replicas_ready()
        joined = [op for family in self.demand.families for op in self.vectors(family, routed_steps_back, synced)]
        copied = Dep("copy_batch_to_device", 2 if routed_steps_back else 1)
        if self.demand.data_parallel.lookups.any():
            work = self.costs.lookup(self.demand.data_parallel, FULL_BYTES)
            launches = self.costs["lookup_launches"]
            self.compute("lookup.data_parallel", "vector_return", "compute", (work,), launches, deps=(copied,))
        workload, vectors = self.scenario.workload, self.pooled_bytes()
        work = self.costs.dense_forward(workload.dense, workload.batch_size, vectors)
        launches = self.costs.forward_launches(workload.dense)
        self.compute("forward", "local_compute", "compute", (work,), launches, deps=(*map(Dep, joined), copied))

    def pooled_bytes(self) -> FloatArray:
        """Bytes of the vectors of the rank's own batch, of all families and of replicated tables, [ranks]."""
        elements = self.demand.data_parallel.outputs + np.zeros(self.layout.world_size)
        for family in self.demand.families:
            elements = elements + (received(family.output[-1]) if family.own is None else family.own.outputs)
        return elements * FULL_BYTES

    def vectors(self, family: FamilyDemand, routed_steps_back: int, synced: tuple[Dep, ...]) -> tuple[str, ...]:
        """Look up one family's rows on their owners and return the vectors; the operations the forward waits for."""
        name, precision, dim = family_name(family), self.scenario.comms.forward, self.row_dim(family)
        routed = Dep(f"input_dist.recat.{name}", routed_steps_back)
        self.compute(
            f"lookup.{name}", "vector_return", "compute",
            (self.costs.lookup(family.local, FULL_BYTES),), self.costs["lookup_launches"], deps=(routed, *synced),
            copies=self.costs.fetch(family.local),
        )  # fmt: skip
        released = self.release_weights(family)
        last = self.exchange(family.output, "output_dist", name, "vector_return", precision, dim, f"lookup.{name}")
        work = self.costs.join(received(family.output[-1]) * FULL_BYTES)
        self.compute(
            f"output_dist.join.{name}", "vector_return", "compute", (work,),
            self.costs["output_launches"], deps=(Dep(last),),
        )  # fmt: skip
        if family.own is None:
            return (f"output_dist.join.{name}", *released)
        self.compute(
            f"output_dist.pool.{name}", "vector_return", "compute", (self.costs.from_distinct(family.own),),
            self.costs["output_launches"], deps=(Dep(f"output_dist.join.{name}"),),
        )  # fmt: skip
        return (f"output_dist.pool.{name}", *released)

    def exchange(
        self,
        hops: tuple[Collective, ...],
        label: str,
        name: str,
        stage: Stage,
        precision: DataType,
        dim: float,
        after: str,
    ) -> str:
        """Encode, exchange hop by hop, decode; the name of the last operation.

        A hop that sums on the way carries a data type that can be summed; where hops differ, they are coded anew.
        """
        held: DataType = "fp32"
        for index, hop in enumerate(hops):
            suffix = name if len(hops) == 1 else f"{name}.{index + 1}"
            wire = carried(hop.kind, precision)
            if wire != held:
                work = self.costs.encode(given(hop), held, wire, dim)
                after = self.codec(f"{label}.encode.{suffix}", stage, work, after)
                held = wire
            self.collective(
                f"{label}.{suffix}", stage, "comm", hop.scaled(wire_bytes(wire, dim)), deps=(Dep(after),), label=label
            )
            after = f"{label}.{suffix}"
        if held != "fp32":
            after = self.codec(f"{label}.decode.{name}", stage, self.costs.decode(received(hops[-1]), held, dim), after)
        return after

    def codec(self, name: str, stage: Stage, work: Work, after: str) -> str:
        self.compute(name, stage, "compute", (work,), self.costs["codec_launches"], deps=(Dep(after),))
        return name

    def row_dim(self, family: FamilyDemand) -> float:
        return vector_width(family, self.sharded)

    # -- backward: the rest of stage 4, then 5, 6 and 7 --------------------------------------------------------

    def backward(self) -> None:
        """Dense backward, gradients back to the owners, updates, dense and replica synchronisation."""
        workload = self.scenario.workload
        launches = self.costs.backward_launches(workload.dense)
        work = self.costs.dense_backward(workload.dense, workload.batch_size, self.pooled_bytes())
        self.compute("backward", "local_compute", "compute", (work,), launches)
        self.replicated_gradients()
        returned = [self.gradients(family) for family in reversed(self.demand.families)]
        self.dense_all_reduce()
        for family, after in zip(reversed(self.demand.families), returned, strict=True):
            # Where replicas exchange gradients, rows are written once, when those of all replicas are there.
            summed = self.sync == "gradients"
            of_rows = self.costs.sum_by_row if summed else self.costs.update
            self.compute(
                f"embedding_backward.{family_name(family)}", "sparse_gradient_return", "compute",
                (of_rows(family.local, FULL_BYTES),), self.costs["embedding_backward_launches"],
                deps=(Dep(self.gather_weights(family, after)),),
                copies=() if summed else self.costs.write_back(family.local),
            )  # fmt: skip
        self.replica_sync()
        self.dense_optimizer()

    def gradients(self, family: FamilyDemand) -> str:
        """Return the gradients of one family's vectors to the row owners, mirroring the forward hop by hop."""
        hops = tuple(hop.mirrored() for hop in reversed(family.output))
        name, precision, after = family_name(family), self.scenario.comms.backward, "backward"
        if family.own is not None:
            after = f"output_dist_backward.unpool.{name}"
            work = self.costs.to_distinct(family.own, given(hops[0]))
            launches = self.costs["embedding_backward_launches"]
            self.compute(after, "sparse_gradient_return", "compute", (work,), launches, deps=(Dep("backward"),))
        return self.exchange(
            hops, "output_dist_backward", name, "sparse_gradient_return", precision, self.row_dim(family), after
        )

    def replicated_gradients(self) -> None:
        """Gradients of data_parallel tables, as large as the tables: cleared, then summed up row by row."""
        local = self.demand.data_parallel
        if not local.lookups.any():
            return
        cleared = float(self.demand.data_parallel_elements * FULL_BYTES)
        works = (self.costs.clear(cleared), self.costs.sum_by_row(local, FULL_BYTES))
        self.compute(
            "embedding_backward.data_parallel", "sparse_gradient_return", "compute", works,
            self.costs["embedding_backward_launches"],
        )  # fmt: skip

    def dense_all_reduce(self) -> None:
        elements = self.scenario.workload.dense.num_parameters + self.demand.data_parallel_elements
        if not elements:
            return
        work = Collective(
            kind="all_reduce", groups=Groups.world(self.layout.world_size), nbytes=(float(elements * FULL_BYTES),)
        )
        stream: Stream = "comm" if self.layout.replicas == 1 else "dense_comm"  # one process group, one NCCL stream
        replicated = self.demand.data_parallel.lookups.any()
        after = "embedding_backward.data_parallel" if replicated else "backward"
        self.collective("dense_all_reduce", "dense_gradient_sync", stream, work, deps=(Dep(after),))

    def dense_optimizer(self) -> None:
        elements, replicated = self.scenario.workload.dense.num_parameters, self.demand.data_parallel_elements
        accesses = float(elements * _ACCESSES["adam"])
        accesses += replicated * _ACCESSES[self.scenario.execution.optimizer]
        if not accesses:
            return
        work = self.costs.dense_optimizer(elements, replicated, accesses)
        self.compute(
            "dense_optimizer", "optimizer_update", "compute", (work,), self.costs["optimizer_launches"],
            deps=(Dep("dense_all_reduce"),),
        )  # fmt: skip


def _distinct(groups: Groups) -> tuple[NDArray[np.int64], ...]:
    """One group for all where all are of one size, else every group."""
    return groups.members[:1] if len(set(groups.sizes.tolist())) == 1 else groups.members

"""What each operation of a program does with real tensors, found by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foreshard.calibration.ops.optimizers import EmbeddingOptimizer
from foreshard.calibration.runner.batches import Loader
from foreshard.calibration.runner.family import Family
from foreshard.calibration.runner.gradient_ops import GradientOps
from foreshard.calibration.runner.id_ops import IdOps
from foreshard.calibration.runner.model_ops import ModelOps, at_step
from foreshard.calibration.runner.replica_ops import ReplicaOps
from foreshard.calibration.runner.shards import Shards
from foreshard.calibration.runner.state import BatchState, Flow, Issue
from foreshard.calibration.runner.vector_ops import Exchange, VectorOps
from foreshard.simulator.job.layout import Sync
from foreshard.simulator.job.program import Op
from foreshard.topologies.errors import InputError

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["Action", "Actions"]

Action = Callable[[int], Issue | None]  # of the number of the batch; a Compute op returns None


@dataclass(slots=True, kw_only=True, eq=False)
class Actions:
    """The operations of one rank by name; `batches` are those on the device, by number.

    `optimizer` steps sharded rows, `whole_optimizer` those of data_parallel tables.
    """

    families: dict[str, Family]
    loader: Loader
    shards: Shards
    ids: IdOps
    vectors: VectorOps
    gradients: GradientOps
    model: ModelOps
    replicas: ReplicaOps
    forward_exchange: Exchange
    backward_exchange: Exchange
    optimizer: EmbeddingOptimizer
    whole_optimizer: EmbeddingOptimizer
    sync: Sync | None
    batches: dict[int, BatchState] = field(default_factory=dict)

    def bind(self, op: Op, group: dist.ProcessGroup | None) -> Action:
        """The action of an operation. Raises InputError for a name that is not known here."""
        match op.name.split("."):
            case ["input_dist", "splits", *suffix]:
                return self._splits(suffix, group)
            case ["input_dist", what, *name]:
                return self._input_dist(what, self._family(name), group)
            case ["output_dist" | "output_dist_backward" as label, ("join" | "pool" | "unpool") as what, *name]:
                return self._order(label, what, self._family(name))
            case ["output_dist" | "output_dist_backward" as label, *rest]:
                return self._exchange(label, rest, group)
            case ["replica_sync", *rest]:
                return self._replica_sync(rest, group)
            case [label, *name]:
                return self._local(label, name, group)
        raise _unknown(op.name)

    def _family(self, name: Sequence[str]) -> Family:
        known = self.families.get(".".join(name))
        if known is None:
            raise _unknown(".".join(name))
        return known

    def _splits(self, suffix: Sequence[str], group: dist.ProcessGroup | None) -> Action:
        name = ".".join(suffix)
        families = list(self.families.values()) if name == "fused" else [self._family(suffix)]
        assert group is not None

        def act(number: int) -> Issue:
            return self.ids.splits(families, self.batches[number], group)

        return act

    def _input_dist(self, what: str, family: Family, group: dist.ProcessGroup | None) -> Action:
        compute = {"dedup": self.ids.dedup, "permute": self.ids.permute, "recat": self.ids.recat}
        if what in compute:
            return self._on_batch(lambda batch: compute[what](family, batch))
        exchange = {"lengths": self.ids.lengths, "values": self.ids.values, "weights": self.ids.weights}
        if what not in exchange or group is None:
            raise _unknown(f"input_dist.{what}")
        return lambda number: exchange[what](family, self.batches[number], group)

    def _order(self, label: str, what: str, family: Family) -> Action:
        match label, what:
            case "output_dist", "join":
                return self._on_batch(lambda batch: self.vectors.join(family, batch))
            case "output_dist", "pool":
                return self._on_batch(lambda batch: self.vectors.pool(family, batch))
            case "output_dist_backward", "unpool":
                return self._on_batch(lambda batch: self.gradients.unpool(family, batch))
        raise _unknown(f"{label}.{what}")

    def _exchange(self, label: str, rest: Sequence[str], group: dist.ProcessGroup | None) -> Action:
        """Encode, hop or decode; a hop's number comes last where there are several."""
        exchange = self.forward_exchange if label == "output_dist" else self.backward_exchange
        what, name = (rest[0], rest[1:]) if rest[0] in ("encode", "decode") else ("hop", rest)
        hop = int(name[-1]) - 1 if name[-1].isdigit() else 0
        family = self._family(name[:-1] if name[-1].isdigit() else name)

        def flow(number: int) -> Flow:
            found = self.batches[number].families[family.name].flow
            assert found is not None
            return found

        if what == "hop":
            assert group is not None
            return lambda number: exchange.hop(flow(number), hop, group)
        if what == "encode":
            return lambda number: exchange.encode(flow(number), hop)
        return lambda number: exchange.decode(flow(number))

    def _replica_sync(self, rest: Sequence[str], group: dist.ProcessGroup | None) -> Action:
        what, name = rest[0], rest[1:]
        number = int(name[0]) - 1 if name and name[0].isdigit() else 0
        if what == "pad":
            family = self._family(name)
            return lambda _: self.replicas.pad(family)
        assert group is not None
        match what:
            case "weights" | "state":
                return lambda _: self.replicas.average(number, state=what == "state", group=group)
            case "reduce_scatter":
                family = self._family(name)
                return lambda _: self.replicas.release(family, group)
            case "all_gather":
                family = self._family(name)
                return lambda _: self.replicas.gather(family, group)
            case "counts":
                return lambda batch: self.replicas.count(number, self.batches[batch], group)
            case "rows":
                return lambda batch: self.replicas.rows(number, self.batches[batch], group)
        raise _unknown(f"replica_sync.{what}")

    def _local(self, label: str, name: Sequence[str], group: dist.ProcessGroup | None) -> Action:
        """Operations that stay on the rank, and the dense all-reduce."""
        match label, *name:
            case ["copy_batch_to_device"]:
                return self._copy
            case ["lookup", "data_parallel"]:
                return self._on_batch(self.model.lookup_replicated)
            case ["lookup", *_]:
                family = self._family(name)
                return self._on_batch(lambda batch: self.vectors.lookup(family, batch))
            case ["forward"]:
                return self._on_batch(self.model.forward)
            case ["backward"]:
                return self._backward
            case ["embedding_backward", "data_parallel"]:
                return self._on_batch(self.model.backward_replicated)
            case ["embedding_backward", *_]:
                return self._update(self._family(name))
            case ["dense_all_reduce"] if group is not None:
                return lambda _: self.model.all_reduce(group)
            case ["embedding_optimizer", "replicas"]:
                return lambda number: self.replicas.apply(at_step(self.optimizer, number))
            case ["dense_optimizer"]:
                return lambda number: self.model.optimize(at_step(self.whole_optimizer, number))
        raise _unknown(".".join((label, *name)))

    def _copy(self, number: int) -> None:
        self.batches[number] = self.model.copy_batch(self.loader[number])

    def _backward(self, number: int) -> None:
        """Dense backward, and gradients of vectors laid out for their way; deduplicated ones are summed up later."""
        batch = self.batches[number]
        self.model.backward(batch)
        for family in self.families.values():
            if not family.dedup:
                self.gradients.collect(family, batch)

    def _update(self, family: Family) -> Action:
        if self.sync == "gradients":
            return self._on_batch(lambda batch: self.gradients.sum_rows(family, batch))

        def act(number: int) -> None:
            self.gradients.update(family, self.batches[number], at_step(self.optimizer, number))

        return act

    def _on_batch(self, act: Callable[[BatchState], None]) -> Action:
        return lambda number: act(self.batches[number])


def _unknown(name: str) -> InputError:
    return InputError(f"the runner does not know how to run operation {name!r}: runner and simulator differ, reinstall")

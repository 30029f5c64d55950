"""Matrix products of traces as records of dense work: what a linear layer's kernels take, forward and backward.

Only the products are counted, not what runs between them (activations, sums, interactions), as in the cost model. The
forward is an aten::addmm or aten::mm of autograd; the backward is what the node with its sequence number launched.
Look-ups are not taken: a trace has the sizes of the tables' memory, but neither rows nor widths of single tables.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from foreshard.calibration.imports.kineto import CpuOp, RawTrace, Thread, whole
from foreshard.calibration.measure.device_records import WorkRecord
from foreshard.simulator.job.work import WorkKind

__all__ = ["TracedWork", "traced_work"]

_WIDTHS = {"float": 4, "c10::Half": 2, "c10::BFloat16": 2}
_LEAST_SHAPES = 4  # a fit has up to four terms: layers, flops, bytes of weights and of activations


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedWork:
    """Records of dense work, in words what they are of, and what was skipped."""

    records: tuple[WorkRecord, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layer:
    """A linear layer on a batch: samples, inputs, outputs, the type of its numbers, and whether it has a bias."""

    samples: int
    inputs: int
    outputs: int
    data_type: str
    bias: bool

    @property
    def name(self) -> str:
        return f"{self.samples} x {self.inputs} x {self.outputs}{' with bias' * self.bias}"

    def counts(self, products: int) -> dict[str, float]:
        """Features of dense_forward or dense_backward (see job.work) for so many products."""
        width = _WIDTHS[self.data_type]
        return {
            "layers": 1.0,
            "flops": 2.0 * products * self.samples * self.inputs * self.outputs,
            "weight_bytes": float(width * (self.inputs + self.bias) * self.outputs),
            "activation_bytes": float(width * self.samples * (self.inputs + self.outputs)),
        }


_Times = dict[tuple[WorkKind, _Layer, int], list[float]]  # seconds by kind, layer and products


def traced_work(traces: Sequence[RawTrace]) -> TracedWork:
    """Return the dense work of traces of one run: the ranks' times are pooled, since each trained the same model."""
    skipped: Counter[str] = Counter()
    times: _Times = defaultdict(list)
    for trace in traces:
        _add_products(trace, times, skipped)
        skipped["embedding look-ups and updates: their tables' rows and widths are not told"] += trace.lookups
    data_type = _most_worked(times)
    records: list[WorkRecord] = []
    notes = []
    for kind in ("dense_forward", "dense_backward"):
        of_kind = {key: took for key, took in times.items() if key[0] == kind}
        own = {key: took for key, took in of_kind.items() if key[1].data_type == data_type}
        skipped[f"{kind} of another type than {data_type}"] += _count(of_kind) - _count(own)
        layers = {key[1] for key in own}
        if len(layers) < _LEAST_SHAPES:
            skipped[f"{kind} of {len(layers)} different layers: a fit needs {_LEAST_SHAPES}"] += _count(own)
        else:
            records += _records(own)
            notes.append(_what(kind, layers))
    return TracedWork(
        records=tuple(records),
        notes=tuple(notes),
        skipped=tuple(f"{count} skipped: {reason}" for reason, count in sorted(skipped.items()) if count),
    )


def _count(times: _Times) -> int:
    return sum(map(len, times.values()))


def _what(kind: str, layers: set[_Layer]) -> str:
    """What a fit is of. With one number of samples nothing tells bytes of weights from operations on them."""
    batches = sorted({layer.samples for layer in layers})
    held = f", all of {batches[0]} samples: it holds for such batches only" if len(batches) == 1 else ""
    data_type = next(iter(layers)).data_type
    return f"{kind}: the products of {len(layers)} different linear layers in {data_type}, nothing between{held}"


def _records(times: Mapping[tuple[WorkKind, _Layer, int], Sequence[float]]) -> Iterator[WorkRecord]:
    for (kind, layer, products), took in sorted(times.items(), key=lambda item: (item[0][1].name, item[0][2])):
        name = f"{kind} {layer.name}, {products} products"
        yield WorkRecord(job=0, op=name, works=((kind, layer.counts(products)),), times_s=tuple(took))


def _most_worked(times: _Times) -> str:
    """The type of numbers in which most time was spent."""
    spent: Counter[str] = Counter()
    for (_, layer, _), took in times.items():
        spent[layer.data_type] += round(sum(took) * 1e9)  # whole nanoseconds add up the same in any order
    return min(spent, key=lambda name: (-spent[name], name), default="float")


def _add_products(trace: RawTrace, times: _Times, skipped: Counter[str]) -> None:
    backward = _Nodes(trace.backward)
    forward: dict[int | None, _Layer] = {}
    returning: dict[int | None, list[float]] = defaultdict(list)
    for op in trace.products:
        took = op.gpu_us * 1e-6
        node = backward.around(op)
        if took <= 0:
            continue
        if node is not None:
            returning[whole(node.args.get("Sequence number"))].append(took)
            continue
        layer, number = _layer(op), whole(op.args.get("Sequence number"))
        if layer is None or number is None:
            skipped["matrix products without shapes, or outside of autograd"] += 1
            continue
        forward[number] = layer
        times["dense_forward", layer, 1].append(took)
    for number, took_s in returning.items():
        if number in forward:
            times["dense_backward", forward[number], len(took_s)].append(sum(took_s))
        else:
            skipped["matrix products of a backward whose forward was not recorded with shapes"] += len(took_s)


def _layer(op: CpuOp) -> _Layer | None:
    """The layer that a product is of: [samples, inputs] by [inputs, outputs]; None if the trace does not tell."""
    dims, types = op.args.get("Input Dims"), op.args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    at = 1 if op.name == "aten::addmm" else 0
    left, right, told = dims[at : at + 1], dims[at + 1 : at + 2], types[at : at + 1]
    shapes = [size for shape in (*left, *right) if isinstance(shape, list) for size in shape]
    if len(shapes) != 4 or any(type(size) is not int or size < 1 for size in shapes) or shapes[1] != shapes[2]:
        return None
    data_type = str(*told)
    return _Layer(shapes[0], shapes[1], shapes[3], data_type, at == 1) if data_type in _WIDTHS else None


class _Nodes:
    """The nodes of autograd whose products are a linear layer's backward, by thread and time."""

    def __init__(self, nodes: Iterable[CpuOp]) -> None:
        self._threads: dict[Thread, list[CpuOp]] = defaultdict(list)
        for node in sorted(nodes, key=lambda node: node.start_us):
            self._threads[node.thread].append(node)

    def around(self, op: CpuOp) -> CpuOp | None:
        """The node during which an operator ran on its thread; None outside of all."""
        nodes = self._threads.get(op.thread, [])
        place = bisect_right(nodes, op.start_us, key=lambda node: node.start_us) - 1
        return nodes[place] if place >= 0 and op.end_us <= nodes[place].end_us else None

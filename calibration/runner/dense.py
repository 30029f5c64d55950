"""The dense part of a model: linear layers on flat parameters, interaction, loss, and what stands for a model in sums.

Chains of widths as `workload.dense.layers` has them. Of several chains the first takes the dense inputs (bottom MLP);
its output and all pooled vectors, in the order of the tables and their features, are put side by side and go through
the other chains one after the other (DLRM's concatenation; DCN's low-rank layers are such chains). A width that differs
from the next chain's inputs is padded with zeros, or folded: cut into pieces of the wanted width that are added up.
Every layer but the last is followed by a ReLU. The logit is the mean of the last outputs. Sequences are summed up for
each sample first.

A model that is given as totals (`forward_flops_per_sample`, `parameters`, `kernels`) is run as square layers of equal
width: half as many as kernels (a product and a ReLU each), as wide as the parameters allow, passed through as often as
the FLOPs ask for; parameters that are left over take part in the all-reduce and the optimizer only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING

from foreshard.calibration.runner.initial import dense_parameters
from foreshard.simulator.job.workload import Dense

if TYPE_CHECKING:
    import torch

__all__ = ["DenseModel", "Shape", "fold", "loss_of", "shape_of"]

_LAYERS = 4  # square layers of a model that is given as totals without kernels
_KERNELS_PER_LAYER = 2  # matrix product with bias, ReLU


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Chains of layer widths; the first is the bottom one if `has_bottom`. `repeats` passes through the last chain.

    `spare` parameters belong to no layer.
    """

    chains: tuple[tuple[int, ...], ...]
    has_bottom: bool = False
    repeats: int = 1
    spare: int = 0

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(Inputs, outputs) of every layer."""
        return tuple(pair for chain in self.chains for pair in pairwise(chain))


def shape_of(dense: Dense) -> Shape:
    """The layers that are run for a dense model; together with `spare` they have exactly its `num_parameters`."""
    if dense.layers and dense.parameters is None and dense.forward_flops_per_sample is None:
        return Shape(chains=dense.layers, has_bottom=len(dense.layers) > 1)
    return _square(dense.num_parameters, dense.flops_per_sample, dense.kernels)


def _square(parameters: int, flops: float, kernels: int | None) -> Shape:
    """Square layers with at most so many parameters and FLOPs; none where there are too few for one number."""
    count = _LAYERS if kernels is None else max(1, kernels // _KERNELS_PER_LAYER)
    count = min(count, parameters // 2)
    if not count:
        return Shape(chains=(), spare=parameters)
    width = (isqrt(1 + 4 * (parameters // count)) - 1) // 2  # the largest w with w^2 + w <= parameters of a layer
    if flops:
        width = max(1, min(width, isqrt(int(flops / (2 * count)))))
    repeats = max(1, round(flops / (2 * count * width * width)))
    return Shape(chains=((width,) * (count + 1),), repeats=repeats, spare=parameters - count * (width * width + width))


class DenseModel:
    """The dense layers of one rank; `parameters` and `gradients` float32 [num_parameters] are flat.

    Layer k's weight [outputs, inputs] and bias [outputs] are views of both, in the order of the layers, spare
    parameters last.
    """

    def __init__(
        self, dense: Dense, seed: int, parameters: torch.Tensor, gradients: torch.Tensor, *, exact: bool
    ) -> None:
        import torch

        self.shape = shape_of(dense)
        self._exact = exact
        types = {"fp16": torch.float16, "bf16": torch.bfloat16}
        self._dtype = torch.float32 if exact else types.get(dense.data_type, torch.float32)
        self.parameters, self.gradients = parameters, gradients
        self.tensors: list[torch.Tensor] = []  # weight and bias, layer by layer
        self._at = 0
        for layer, (inputs, outputs) in enumerate(self.shape.layers):
            self._add(seed, 2 * layer, (outputs, inputs), inputs)
            self._add(seed, 2 * layer + 1, (outputs,), inputs)

    def _add(self, seed: int, number: int, shape: tuple[int, ...], fan_in: int) -> None:
        """One parameter tensor as a leaf of autograd whose gradient lies in the flat gradients."""
        import torch

        place = slice(self._at, self._at + torch.Size(shape).numel())
        self._at = place.stop
        self.parameters[place] = dense_parameters(
            seed, number, shape, fan_in, self.parameters.device, exact=self._exact
        ).reshape(-1)
        leaf = self.parameters[place].view(shape).detach().requires_grad_()
        leaf.grad = self.gradients[place].view(shape)
        self.tensors.append(leaf)

    def logits(self, dense: torch.Tensor, vectors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The logit of every sample, float32 [samples]; `dense` [samples, features], `vectors` [samples, dim] each."""
        import torch

        layer, values = 0, torch.cat(list(vectors), dim=1) if vectors else dense[:, :0]
        last = len(self.shape.layers)
        for number, chain in enumerate(self.shape.chains):
            bottom = number == 0 and self.shape.has_bottom
            taken = dense if bottom else fold(values, chain[0])
            for turn in range(self.shape.repeats):
                taken = self._chain(taken, layer, len(chain) - 1, last if turn == self.shape.repeats - 1 else -1)
            layer += len(chain) - 1
            values = torch.cat([taken, values], dim=1) if bottom else taken
        return values.sum(dim=1) if self._exact else values.mean(dim=1)

    def _chain(self, values: torch.Tensor, first: int, layers: int, last: int) -> torch.Tensor:
        """Through `layers` layers from layer `first`; the layer before `last`, the model's end, has no ReLU."""
        import torch

        for layer in range(first, first + layers):
            weight, bias = self.tensors[2 * layer].to(self._dtype), self.tensors[2 * layer + 1].to(self._dtype)
            values = torch.nn.functional.linear(values.to(self._dtype), weight, bias)
            if not self._exact and layer + 1 != last:
                values = torch.relu(values)
        return values.to(torch.float32)


def fold(values: torch.Tensor, width: int) -> torch.Tensor:
    """`values` [samples, columns] as [samples, width]: padded with zeros, then pieces of that width added up."""
    import torch

    samples, columns = values.shape
    if columns == width:
        return values
    pieces = max(1, -(-columns // width))
    padded = torch.nn.functional.pad(values, (0, pieces * width - columns))
    return padded.view(samples, pieces, width).sum(dim=1)


def loss_of(logits: torch.Tensor, labels: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """The loss of a rank's batch: mean binary cross entropy; in exact mode the sum of label x logit."""
    import torch

    if exact:
        return (logits * labels).sum()
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)

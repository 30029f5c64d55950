"""Initial values as pure functions of where they stand, so that every shard, and the dense reference, makes its own.

The value at (row, column) of a table depends on the seed, the table's index in the workload, the row and the column:
64 bits mixed by SplitMix64's finaliser, of which the upper 24 become a float32. Dense parameters, inputs and labels are
made alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["dense_inputs", "dense_parameters", "labels", "table_rows"]

# SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) with David Stafford's variant 13, as signed 64-bit integers.
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_WORD = (1 << 64) - 1

_TABLE, _PARAMETERS, _INPUTS, _LABELS = range(4)  # what a value is for, so that equal places have different values
_BLOCK = 1 << 22  # elements made at once, which bounds the memory of the intermediates
_WHOLE = 5  # whole numbers -2 .. 2 of tables in exact mode
_SIGNS = 3  # -1, 0, 1 of everything else


def table_rows(
    seed: int, table: int, rows: torch.Tensor, columns: range, num_embeddings: int, *, exact: bool
) -> torch.Tensor:
    """The initial rows float32 [rows, columns] of the workload's table number `table`; `rows` int64 are its ids.

    Uniform within 1 / sqrt(num_embeddings) either way, TorchRec's default; -2 to 2 in exact mode.
    """
    import torch

    out = torch.empty((len(rows), len(columns)), dtype=torch.float32, device=rows.device)
    each = max(1, _BLOCK // max(1, len(columns)))
    for begin in range(0, len(rows), each):
        bits = _grid(_key(seed, _TABLE, table), rows[begin : begin + each], columns)
        out[begin : begin + each] = _whole(bits, _WHOLE) if exact else _uniform(bits, num_embeddings**-0.5)
    return out


def dense_parameters(
    seed: int, layer: int, shape: tuple[int, ...], fan_in: int, device: torch.device, *, exact: bool
) -> torch.Tensor:
    """The initial parameters of one tensor: uniform within 1 / sqrt(fan_in), torch's default; -1, 0, 1 in exact mode.

    A layer's weight has number 2 x layer, its bias 2 x layer + 1.
    """
    bits = _line(_key(seed, _PARAMETERS, layer), shape, device)
    return _whole(bits, _SIGNS) if exact else _uniform(bits, max(1, fan_in) ** -0.5)


def dense_inputs(
    seed: int, step: int, rank: int, samples: int, features: int, device: torch.device, *, exact: bool
) -> torch.Tensor:
    """The dense features float32 [samples, features] of a rank's batch: within 1 either way, or -1, 0, 1."""
    bits = _line(_key(seed, _INPUTS, step, rank), (samples, features), device)
    return _whole(bits, _SIGNS) if exact else _uniform(bits, 1.0)


def labels(seed: int, step: int, rank: int, samples: int, device: torch.device, *, exact: bool) -> torch.Tensor:
    """The labels float32 [samples]: 0 or 1; in exact mode the slopes -1, 0, 1 of the linear loss."""
    bits = _line(_key(seed, _LABELS, step, rank), (samples,), device)
    return _whole(bits, _SIGNS) if exact else _whole(bits, 2) + 1.0


def _key(seed: int, *places: int) -> int:
    """One 64-bit key of a seed and the places below it."""
    key = seed & _WORD
    for place in places:
        key = _mixed((key + (place + 1) * _GAMMA) & _WORD)
    return key


def _mixed(bits: int) -> int:
    bits = ((bits ^ (bits >> 30)) * _FIRST) & _WORD
    bits = ((bits ^ (bits >> 27)) * _SECOND) & _WORD
    return bits ^ (bits >> 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _grid(key: int, rows: torch.Tensor, columns: range) -> torch.Tensor:
    """Bits of every (row, column), int64 [rows, columns]."""
    import torch

    across = torch.arange(columns.start, columns.stop, dtype=torch.int64, device=rows.device)
    return _mix(_mix(rows + _signed(key))[:, None] + across)


def _line(key: int, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Bits of every place in row-major order, int64 of that shape."""
    import torch

    count = torch.Size(shape).numel()
    return _mix(torch.arange(count, dtype=torch.int64, device=device) + _signed(key)).view(shape)


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser of every element; torch's int64 wraps around as unsigned integers do."""
    bits = (bits ^ _shifted(bits, 30)) * _signed(_FIRST)
    bits = (bits ^ _shifted(bits, 27)) * _signed(_SECOND)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """A shift to the right that brings in zeros."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _uniform(bits: torch.Tensor, bound: float) -> torch.Tensor:
    """float32 in [-bound, bound) from the upper 24 bits."""
    import torch

    return (_shifted(bits, 40).to(torch.float32) * 2.0**-23 - 1.0) * bound


def _whole(bits: torch.Tensor, values: int) -> torch.Tensor:
    """Whole numbers as float32, `values` of them with 0 in the middle: -2 .. 2 of five, -1 and 0 of two."""
    import torch

    return ((_shifted(bits, 32) % values) - values // 2).to(torch.float32)

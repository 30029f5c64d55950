"""Embedding optimizers of the runner: those of the kernels, and the element-wise ones, which torch does everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from foreshard.kernels import RowWiseAdagrad, Sgd

__all__ = ["Adagrad", "Adam", "EmbeddingOptimizer", "RowWiseAdagrad", "Sgd"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Adagrad:
    """v <- v + gradient^2, one v an element; row <- row - learning_rate x gradient / (sqrt(v) + eps).

    Touched rows only, duplicates summed first (FBGEMM's OptimType.EXACT_ADAGRAD).
    """

    learning_rate: float
    eps: float = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Adam:
    """m and v an element, of touched rows only; bias corrected by the number of steps taken, `step` from 1.

    row <- row - learning_rate x (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps) (FBGEMM's OptimType.ADAM).
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    step: int = 1


EmbeddingOptimizer: TypeAlias = Sgd | RowWiseAdagrad | Adagrad | Adam

"""How a run trains: learning rates, the seed of its initial values, and the mode in which nothing is rounded."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RunSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """What a scenario leaves open about training.

    `exact`: tables, inputs and dense parameters are small whole numbers, the dense part is linear with a linear loss,
    optimizers are SGD with whole steps and nothing is averaged, so that every order of additions gives the same bits;
    replicas that average weights take steps that are multiples of their number.
    `batches`: how many batches are drawn; step n trains on batch n modulo that number. They are drawn and routed before
    the first step, and kept.
    """

    embedding_learning_rate: float = 0.01
    dense_learning_rate: float = 0.001
    exact: bool = False
    batches: int = 4
    keep_vectors: bool = False

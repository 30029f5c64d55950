"""Max-min fair rates of coflows on shared links, by progressive filling in NumPy.

A coflow's flows progress together: at rate x (bytes/s on its busiest link) it takes usage * x of each link. The
fair rates are those in which no coflow can gain without a slower one losing (Bertsekas and Gallager, Data Networks,
section 6.5.2: every flow has a bottleneck link, full, on which no other flow is faster).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["max_min_rates", "numbered"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Levels closer than this are one level: rounding must not cost a round of filling for each of 1,000 equal links.
_EQUAL = 1e-9
_SPARSE = 32  # sorting an entry takes as long as touching so many links


def max_min_rates(
    capacity: FloatArray, coflow: IntArray, link: IntArray, usage: FloatArray, ceiling: FloatArray
) -> FloatArray:
    """Return the max-min fair rate of every coflow, bytes/s, [coflows].

    Entry e says that coflow[e] takes usage[e] > 0 of link[e] per unit of its rate; coflow is sorted, [entries].
    `capacity` [links] in bytes/s, `ceiling` [coflows] a private limit (inf: none); a coflow without entries gets it.
    A round of filling freezes every link that is a local minimum, the tightest link of all its coflows, so that
    thousands of disjoint coflows take a few rounds.
    """
    used, link = numbered(link, len(capacity))
    residual = capacity[used].astype(np.float64)
    level = np.zeros(len(used))
    rate = ceiling.astype(np.float64)
    while len(coflow):
        level = _fair_level(residual, np.bincount(link, usage, len(used)).astype(np.float64), level)
        starts = np.flatnonzero(np.r_[True, coflow[1:] != coflow[:-1]])
        active, counts = coflow[starts], np.diff(np.r_[starts, len(coflow)])
        own = np.minimum(np.minimum.reduceat(level[link], starts), ceiling[active])
        own_of_entry = np.repeat(own, counts)
        local_minimum = _is_local_minimum(link, level[link] > own_of_entry * (1 + _EQUAL), len(used))
        frozen = np.logical_or.reduceat(local_minimum[link], starts) | (own == ceiling[active])
        rate[active[frozen]] = own[frozen]
        gone = np.repeat(frozen, counts)
        residual -= np.bincount(link[gone], usage[gone] * own_of_entry[gone], len(used))
        coflow, link, usage = coflow[~gone], link[~gone], usage[~gone]
    return rate


def numbered(link: IntArray, links: int) -> tuple[IntArray, IntArray]:
    """Return the different ones of `link` in ascending order and the place of each among them, [entries].

    NumPy's unique sorts; where much of all `links` is in use, ticking them off is faster.
    """
    if _SPARSE * len(link) < links:
        used, place = np.unique(link, return_inverse=True)
        return used, place
    seen = np.zeros(links, dtype=bool)
    seen[link] = True
    used = np.flatnonzero(seen)
    place = np.empty(links, dtype=np.int64)
    place[used] = np.arange(len(used))
    return used, place[link]


def _fair_level(residual: FloatArray, demand: FloatArray, previous: FloatArray) -> FloatArray:
    """The rate at which each link would fill up, [links]; it never falls from one round to the next."""
    level: FloatArray = np.full(len(residual), np.inf)
    np.divide(residual, demand, out=level, where=demand > 0)
    return np.asarray(np.maximum(level, previous), dtype=np.float64)


def _is_local_minimum(link: IntArray, looser: NDArray[np.bool_], links: int) -> NDArray[np.bool_]:
    """Whether no active coflow of the link has a tighter one, [links]."""
    return np.asarray(np.bincount(link, looser, links) == 0)

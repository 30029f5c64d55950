"""Before the first collective all ranks make sure, through the store, that they are about to run the same thing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from foreshard.calibration.launch.terms import Terms, differences, digest_of
from foreshard.calibration.launch.wording import ranks_named
from foreshard.topologies.errors import DisagreementError

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["agree"]

_GRACE = 2.0  # the others wait so much longer for the verdict than rank 0 for them, as a factor
_COMPARED = 4  # ranks whose differences are told one by one
_AGREED = b"agreed"


def agree(store: dist.Store, rank: int, world_size: int, terms: Terms, *, join_limit_s: float) -> None:
    """Return when all ranks have the same terms; call it on every rank.

    Raises DisagreementError on every rank: if terms differ, naming the ranks, keys and values, the terms of most ranks
    being taken for the right ones; if ranks have not come within `join_limit_s`, naming them.
    """
    store.set(f"digest/{rank}", digest_of(terms))
    if rank == 0:
        _judge(store, world_size, terms, join_limit_s)
        return
    verdict = _await(store, "verdict", join_limit_s * _GRACE, terms, rank)
    if verdict != _AGREED:
        raise DisagreementError(json.loads(verdict))


def _await(store: dist.Store, key: str, limit_s: float, terms: Terms, rank: int) -> bytes:
    """The verdict; on the way to it the terms of this rank may be asked for."""
    asked = f"asked/{rank}"
    waited = "settled"  # set beside the verdict, or before it, when terms are asked for
    _wait(store, [waited], limit_s, "rank 0 did not say within {limit:g} s whether all ranks agree")
    if store.check([asked]):
        store.set(f"terms/{rank}", json.dumps(terms, default=str))
    _wait(store, [key], limit_s, "rank 0 did not say within {limit:g} s in what the ranks differ")
    return store.get(key)


def _judge(store: dist.Store, world_size: int, terms: Terms, join_limit_s: float) -> None:
    """Rank 0: gather digests, compare, and tell everyone."""
    keys = [f"digest/{rank}" for rank in range(world_size)]
    try:
        store.wait(keys, timedelta(seconds=join_limit_s))
    except RuntimeError:  # DistStoreError: time is up
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        _settle(store, [_too_few(missing, world_size, join_limit_s)])
    digests = [value.decode() for value in store.multi_get(keys)]
    if len(set(digests)) == 1:
        store.set("verdict", _AGREED)
        store.set("settled", "1")
        return
    _settle(store, _disagreement(store, digests, terms, join_limit_s))


def _settle(store: dist.Store, problems: list[str]) -> None:
    store.set("verdict", json.dumps(problems))
    store.set("settled", "1")
    raise DisagreementError(problems)


def _too_few(missing: Sequence[int], world_size: int, limit_s: float) -> str:
    there = world_size - len(missing)
    return (
        f"{there} of {world_size} ranks came within {limit_s:g} s, {ranks_named(missing)} did not: start them all with "
        "the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or give --join-limit more time"
    )


def _disagreement(store: dist.Store, digests: Sequence[str], terms: Terms, limit_s: float) -> list[str]:
    """Ask the odd ranks and one of the others for their terms, and say where they differ."""
    usual = Counter(digests).most_common(1)[0][0]
    right = digests.index(usual)
    odd = [rank for rank, digest in enumerate(digests) if digest != usual]
    asked = [right, *odd[:_COMPARED]]
    for rank in asked:
        store.set(f"asked/{rank}", "1")
    store.set("terms/0", json.dumps(terms, default=str))
    store.set("settled", "1")
    _wait(store, [f"terms/{rank}" for rank in asked], limit_s, "ranks did not send their terms within {limit:g} s")
    told = {rank: json.loads(store.get(f"terms/{rank}")) for rank in asked}
    lines = [
        f"rank {rank} differs from rank {right}: {line}"
        for rank in odd[:_COMPARED]
        for line in differences(told[rank], told[right], (f"rank {rank}", f"rank {right}"))
    ]
    if len(odd) > _COMPARED:
        lines.append(f"{ranks_named(odd[_COMPARED:])} differ from rank {right} too")
    return lines


def _wait(store: dist.Store, keys: list[str], limit_s: float, failure: str) -> None:
    try:
        store.wait(keys, timedelta(seconds=limit_s))
    except RuntimeError as error:  # DistStoreError: time is up, or the store is gone
        raise DisagreementError(f"{failure.format(limit=limit_s)}: {str(error).splitlines()[0]}") from None

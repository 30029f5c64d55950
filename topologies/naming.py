"""Names of links, as "node0/gpu3->node0/nvswitch", and finding the links that a pattern of a what-if means."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from foreshard.topologies.cabling import Cabling
from foreshard.topologies.fields import near
from foreshard.topologies.machine import LEAF, SWITCH
from foreshard.topologies.placing import Placing

__all__ = ["Naming", "damage_of"]

FloatArray = NDArray[np.float64]


class Naming:
    """Names of all links of a placed cluster; node links first, leaf-spine links after them."""

    def __init__(self, at: Placing, cabling: Cabling) -> None:
        self.at, self.cabling = at, cabling

    def ends(self, link: int) -> tuple[str, str]:
        """Names of the two ends of a link."""
        if link >= self.at.node_links:
            return self.cabling.ends(link - self.at.node_links)
        node, local = self.at.node_and_local(link)
        spec = self.at.kinds[self.at.kind_of[node]].links[local]
        return self._end(node, spec.src, spec.dst), self._end(node, spec.dst, spec.src)

    def _end(self, node: int, end: str, other: str) -> str:
        if end == LEAF:
            return f"leaf{self.cabling.leaf_of_nic(node, other)}"
        if end == SWITCH:
            return f"domain{self.at.domain_of_node[node]}/nvswitch"
        return f"node{node}/{end}"

    def all(self) -> Iterator[str]:
        """Names of all links by number."""
        for link in range(self.at.node_links + self.cabling.links):
            yield "->".join(self.ends(link))

    def find(self, pattern: str, names: Sequence[str] | None = None) -> list[int]:
        """Numbers of the links whose names match a pattern; `names` are those of all links if they are at hand."""
        matcher = re.compile("|".join(fnmatch.translate(one) for one in _directions(pattern)))
        return [number for number, name in enumerate(names or self.all()) if matcher.match(name)]


def _directions(pattern: str) -> tuple[str, ...]:
    """A pattern with `<->` means both directions."""
    a, arrow, b = pattern.partition("<->")
    return (f"{a}->{b}", f"{b}->{a}") if arrow else (pattern,)


def damage_of(naming: Naming, degrade: Mapping[str, float], problems: list[str]) -> FloatArray:
    """Return the factor on the bandwidth of each link, [links]; notes patterns that match no link.

    Where several patterns match a link their factors multiply.
    """
    names = list(naming.all())
    factors = np.ones(len(names))
    for pattern, factor in degrade.items():
        where = f'degrade."{pattern}"'
        if not 0.0 <= factor <= 1.0:
            problems.append(f"{where}: {factor} is not a factor from 0 (missing) to 1 (whole)")
            continue
        found = naming.find(pattern, names)
        if not found:
            # The names of all nodes are alike, so the first ones serve as examples; near() takes patterns for words.
            word = re.sub(r"[*?\[\]]", "", pattern.replace("<->", "->")).strip("/")
            like = near(word, dict.fromkeys([*names[:400], *names[-100:]]))
            problems.append(f"{where}: no link has this name; {like}")
        factors[found] *= factor
    return factors

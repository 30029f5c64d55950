"""From a `topo -m` matrix to a node: devices where the matrix puts them, numbers from the catalogue of parts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from foreshard.topologies.machine import Gpu, Link, NodeSpec
from foreshard.topologies.node_parts import PartList, catalogue_cable, catalogue_gpu, part_list
from foreshard.topologies.topo_matrix import TopoMatrix, parse_topo_matrix
from foreshard.topologies.topo_places import Places, completed, place_devices

__all__ = ["read_topo_text"]

# The most NVLinks that any GPU has (H100, H200, B200): more than that to all peers together means a switch.
_MOST_LINKS = 18
_SOURCE = "nvidia-smi topo -m"


def read_topo_text(
    text: str, where: str, gpu: str | None = None, nic: str | None = None
) -> tuple[NodeSpec, tuple[str, ...]]:
    """Return the node that the text of `nvidia-smi topo -m` describes, and what had to be assumed.

    `gpu` and `nic` name parts of the catalogue; without them the number of NVLinks decides. Raises InputError where
    the text cannot be read.
    """
    if nic is not None:
        catalogue_cable(nic, "network")
    named = catalogue_gpu(gpu) if gpu else None
    matrix = completed(parse_topo_matrix(text, where))
    lanes = _lanes(matrix)
    messages = list(matrix.messages)
    model = named or _likely_gpu(matrix, lanes, messages)
    parts = part_list(model)
    places = place_devices(matrix)
    messages.extend(places.messages)
    messages.extend(
        f"legend: {name} is {other}, but no column has that name"
        for name, other in matrix.legend.items()
        if name not in matrix.devices
    )
    messages.extend(_assumed_numbers(model, parts, nic, matrix, places))
    names = _names(matrix, places)
    links = (
        *_nvlinks(names, lanes, parts, len(matrix.gpus), messages),
        *_pcie_links(names, places, parts),
        *parts.socket_links(max(places.socket.values()) + 1),
        *(link for n in places.nics for link in parts.port_links(names[n], nic)),
    )
    node = NodeSpec(
        name="node",
        gpus=(model,) * len(matrix.gpus),
        links=links,
        host_memory_bytes=parts.host_memory_bytes,
        source=f"{_SOURCE}; numbers assumed from the catalogue of parts",
    )
    return node, tuple(dict.fromkeys(messages))


def _names(matrix: TopoMatrix, places: Places) -> dict[str, str]:
    """Device names of the node: GPUs in order of their numbers, NICs in order of their columns."""
    gpus = {gpu: f"gpu{i}" for i, gpu in enumerate(matrix.gpus)}
    return gpus | {nic: f"nic{i}" for i, nic in enumerate(places.nics)}


def _lanes(matrix: TopoMatrix) -> dict[tuple[str, str], int]:
    """NVLinks between pairs of GPUs."""
    codes = {(a, b): matrix.code(a, b) or "" for a, b in combinations(matrix.gpus, 2)}
    return {pair: int(code[2:]) for pair, code in codes.items() if code.startswith("NV")}


def _links_of(lanes: dict[tuple[str, str], int], gpu: str) -> int:
    return sum(count for pair, count in lanes.items() if gpu in pair)


def _likely_gpu(matrix: TopoMatrix, lanes: dict[tuple[str, str], int], messages: list[str]) -> Gpu:
    """A GPU model that has as many NVLinks."""
    most = max((_links_of(lanes, gpu) for gpu in matrix.gpus), default=0)
    links = max(lanes.values()) if most > _MOST_LINKS else most
    name = "A10-24GB"
    for above, model in ((12, "H100-SXM5-80GB"), (6, "A100-SXM4-80GB"), (2, "V100-SXM2-32GB")):
        if links > above:
            name = model
            break
    shown = f"{links} NVLinks a GPU{' (H200 and B200 have as many)' * (links == _MOST_LINKS)}" if links else "no NVLink"
    messages.append(f"topo -m does not name the GPU; {name} is assumed with {shown}: name yours with --gpu")
    return catalogue_gpu(name)


def _assumed_numbers(gpu: Gpu, parts: PartList, nic: str | None, matrix: TopoMatrix, places: Places) -> Iterator[str]:
    yield (
        f"topo -m gives no speeds: PCIe as {parts.pcie}, sockets as {parts.memory} and {parts.smp}, "
        f"{parts.host_memory} of host memory are assumed, as usual with {gpu.name}"
    )
    if places.nics and nic is None:
        yield f"every NIC is assumed to be {parts.nic}: name yours with --nic"
    if places.nics:
        legend = {name: f"{name} ({matrix.legend[name]})" if name in matrix.legend else name for name in places.nics}
        numbered = ", ".join(f"nic{i} is {legend[name]}" for i, name in enumerate(places.nics))
        yield f"NICs by column: {numbered}"
    else:
        yield "there is no NIC, so the machine cannot be joined with others"
    if [int(name[3:]) for name in matrix.gpus] != list(range(len(matrix.gpus))):
        yield f"GPUs by number: {', '.join(f'gpu{i} is {name}' for i, name in enumerate(matrix.gpus))}"


def _nvlinks(
    names: dict[str, str], lanes: dict[tuple[str, str], int], parts: PartList, gpus: int, messages: list[str]
) -> Iterator[Link]:
    most = max((_links_of(lanes, gpu) for gpu in names if gpu.startswith("GPU")), default=0)
    if most > _MOST_LINKS and (len(lanes) < gpus * (gpus - 1) // 2 or len(set(lanes.values())) > 1):
        messages.append("the NVLink counts fit neither a switch nor links between pairs; links between pairs are taken")
    elif most > _MOST_LINKS:
        count = next(iter(lanes.values()))
        messages.append(f"{count} NVLinks to each of {gpus - 1} GPUs: taken as one switch with {count} links a GPU")
        for g in range(gpus):
            yield from parts.nvlink_cable(to_switch=True).both(f"gpu{g}", "nvswitch", count)
        return
    for (a, b), count in lanes.items():
        yield from parts.nvlink_cable(to_switch=False).both(names[a], names[b], count)


def _pcie_links(names: dict[str, str], places: Places, parts: PartList) -> Iterator[Link]:
    slot = catalogue_cable(parts.pcie, "pcie")
    uplinks: dict[int, int] = {places.switch[d]: places.socket[d] for d in names if d in places.switch}
    for switch, socket in sorted(uplinks.items()):
        yield from slot.both(f"pcie{switch}", f"cpu{socket}")
    for device, name in names.items():
        on_switch = device in places.switch
        yield from slot.both(name, f"pcie{places.switch[device]}" if on_switch else f"cpu{places.socket[device]}")

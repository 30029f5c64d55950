"""`foreshard cluster` and `foreshard import-topology`: reports, JSON, drawings, files and refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from foreshard.topologies.cluster import Cluster
from foreshard.topologies.clusterfile import load_cluster_file
from foreshard.topologies.commands import COMMANDS, cluster, import_topology, open_cluster
from foreshard.topologies.drawing import draw_cluster, save_drawing
from foreshard.topologies.drawing_layout import Layout, shown_nodes
from foreshard.topologies.errors import ForeshardError, InputError, MissingDependencyError
from foreshard.topologies.presets import load_preset, preset_names
from foreshard.topologies.summary import describe, describe_text

TOPO = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\tX\tNV4\tPIX\t0-7\t0\nGPU1\tNV4\tX\tSYS\t8-15\t1\n"


def run(*arguments: str) -> Result:
    command = {c.name: c for c in COMMANDS}[arguments[0]]
    return CliRunner().invoke(command, list(arguments[1:]))


def data(*arguments: str) -> dict[str, Any]:
    result = run("cluster", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_the_room_offers_its_two_commands() -> None:
    """What the command line assembles."""
    assert [cluster, import_topology] == COMMANDS


@pytest.mark.parametrize("name", preset_names())
def test_every_machine_can_be_shown(name: str) -> None:
    """The report names ranks, links, bisection, assumptions and sources."""
    text = describe_text(load_preset(name, 2))
    for part in ("ranks", "nominal GB/s", "Bisection", "Assumptions:", "Sources:"):
        assert part in text


def test_json_is_in_base_units() -> None:
    """Two nodes of p5: 8 x 50 GB/s cross the middle, 48.5 usable."""
    found = data("p5.48xlarge", "--nodes", "2")
    assert (found["ranks"], found["nodes"], found["domains"]) == (16, 2, 2)
    assert found["bandwidth"]["bisection_bytes_per_s"] == pytest.approx(8 * 50e9)
    assert found["bandwidth"]["bisection_usable_bytes_per_s"] == pytest.approx(8 * 48.5e9)
    assert {c["name"]: c["source"] for c in found["constants"]}["network_latency_s"]


def test_links_are_counted_by_kind() -> None:
    """The counts of the table add up to the links of the cluster, uplinks included."""
    for name in ("dgx-h100", "gb200-nvl72"):
        found = describe(load_preset(name, 40))
        assert sum(row["count"] for row in found["link_kinds"]) == found["links"]


def test_oversubscription_shows_in_the_bisection(tmp_path: Path) -> None:
    """2:1 uplinks halve what the first half of the nodes can send to the second."""
    head = (
        'schema = 1\nname = "t"\npreset = "p5.48xlarge"\nnodes = 4\n[fabric]\nkind = "leaf_spine"\nnodes_per_leaf = 2\n'
    )
    (tmp_path / "whole.toml").write_text(head)
    (tmp_path / "half.toml").write_text(head + "oversubscription = 2.0\n")
    whole, half = (data(str(tmp_path / f"{n}.toml"))["bandwidth"] for n in ("whole", "half"))
    assert half["bisection_bytes_per_s"] == pytest.approx(whole["bisection_bytes_per_s"] / 2)


def test_degraded_links_are_listed() -> None:
    """--degrade names links by pattern; the report shows each with its factor."""
    found = data("p5.48xlarge", "--nodes", "2", "--degrade", "node0/nic3<->leaf0=0.5")
    assert found["degraded"] == [
        {"link": "node0/nic3->leaf0", "factor": 0.5},
        {"link": "leaf0->node0/nic3", "factor": 0.5},
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["p6"], "neither a machine nor a file; did you mean 'p6-b200.48xlarge'?"),
        (["absent.toml"], "absent.toml: cannot be read"),
        (["p5.48xlarge", "--degrade", "nic=half"], "'half' is not a number"),
        (["p5.48xlarge", "--degrade", "0.5"], "names no links"),
        (["p5.48xlarge", "--degrade", "*nic*=0.5", "--degrade", "*nic*=0.2"], "'*nic*' is given twice"),
        (["p5.48xlarge", "--nodes", "2", "--degrade", "node0/nic*->*=0"], "ranks 0-7: no route to a NIC"),
        (["p5.48xlarge", "--plot", "nowhere/x.png"], "does not exist"),
    ],
)
def test_mistakes_are_told_before_any_output(arguments: list[str], message: str) -> None:
    """A user's mistake is a ForeshardError with what to do, and nothing is printed."""
    result = run("cluster", *arguments)
    assert isinstance(result.exception, ForeshardError)
    assert message in str(result.exception)
    assert result.output == ""


def test_a_number_of_nodes_is_the_files_own_unless_given(tmp_path: Path) -> None:
    """A file keeps its nodes; a shipped machine begins with one."""
    (tmp_path / "c.toml").write_text('schema = 1\nname = "t"\npreset = "pcie-4x"\nnodes = 3\n')
    assert open_cluster(str(tmp_path / "c.toml")).nodes == 3
    assert open_cluster(str(tmp_path / "c.toml"), 5).nodes == 5
    assert open_cluster("pcie-4x").nodes == 1


def test_a_drawing_is_written_whole(tmp_path: Path) -> None:
    """--plot leaves one PNG and no half file."""
    pytest.importorskip("matplotlib")
    result = run("cluster", "p4d.24xlarge", "--nodes", "2", "--plot", str(tmp_path / "p.png"))
    assert result.exit_code == 0, result.output
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["p.docx", "p.jpg", "p.PNG", "p", ".png"])
def test_an_unknown_kind_of_picture_is_a_users_mistake(name: str, tmp_path: Path) -> None:
    """One line names the file and the kinds there are, before anything is printed or written."""
    result = run("cluster", "pcie-4x", "--plot", str(tmp_path / name))
    assert isinstance(result.exception, InputError)
    assert f"{name}: drawings are written as .png, .svg, .pdf" in str(result.exception)
    assert result.output == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_cluster_gives_the_same_picture(kind: str, tmp_path: Path) -> None:
    """No date and no random name is in a drawing."""
    pytest.importorskip("matplotlib")
    for name in ("one", "other"):
        save_drawing(load_preset("pcie-4x"), tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"other.{kind}").read_bytes()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is optional; the message says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"foreshard\[plot\]"):
        draw_cluster(load_preset("pcie-4x"))


@pytest.mark.parametrize("name", preset_names())
def test_no_two_boxes_of_a_drawing_overlap(name: str) -> None:
    """Every device of the drawn nodes has a place of its own."""
    made = load_preset(name, 40)
    boxes = list(Layout(made, shown_nodes(made)).boxes.items())
    for i, (a, (x, y, half)) in enumerate(boxes):
        for b, (other_x, other_y, other_half) in boxes[i + 1 :]:
            assert abs(x - other_x) >= half + other_half or abs(y - other_y) >= 0.52, (a, b)


def test_the_second_drawn_node_differs_most() -> None:
    """On another leaf if there is one, else simply the next."""
    assert shown_nodes(load_preset("dgx-h100", 64)) == (0, 32)
    assert shown_nodes(load_preset("p5.48xlarge", 64)) == (0, 1)
    assert shown_nodes(load_preset("p5.48xlarge", 1)) == (0,)


def test_a_drawing_shows_damage_and_labels() -> None:
    """Missing and degraded links carry a word, GPUs their rank."""
    pytest.importorskip("matplotlib")
    made = load_preset("p5.48xlarge", 2, {"node0/nic3<->leaf0": 0.5, "node1/gpu2<->node1/nvswitch": 0.0})
    words = {text.get_text() for text in draw_cluster(made).texts}
    assert {"x 0.5", "missing", "gpu0\nrank 0", "gpu7\nrank 15", "450"} <= words


def test_an_import_writes_a_cluster_file_and_tells_its_assumptions(tmp_path: Path) -> None:
    """What is written loads, and every assumption stands in the file and on the screen."""
    (tmp_path / "topo.txt").write_text(TOPO)
    out = tmp_path / "c.toml"
    result = run("import-topology", str(tmp_path / "topo.txt"), "-o", str(out), "--gpu", "A100-SXM4-40GB")
    assert result.exit_code == 0, result.output
    made: Cluster = load_cluster_file(out, nodes=2)
    assert (made.size, made.gpu(0).name) == (4, "A100-SXM4-40GB")
    assert made.assumptions
    assert all(sentence in result.output for sentence in made.assumptions)


def test_an_existing_file_is_not_replaced_without_force(tmp_path: Path) -> None:
    """The old file stays byte for byte; --force replaces it."""
    (tmp_path / "topo.txt").write_text(TOPO)
    out = tmp_path / "c.toml"
    out.write_text("mine")
    result = run("import-topology", str(tmp_path / "topo.txt"), "-o", str(out))
    assert "--force" in str(result.exception)
    assert out.read_text() == "mine"
    assert run("import-topology", str(tmp_path / "topo.txt"), "-o", str(out), "--force").exit_code == 0
    assert load_cluster_file(out).size == 2


def test_a_refused_import_writes_nothing(tmp_path: Path) -> None:
    """A mistake names the file and line, and no output appears."""
    (tmp_path / "topo.txt").write_text("GPU0 GPU1\nGPU0 X OK\n")
    result = run("import-topology", str(tmp_path / "topo.txt"), "-o", str(tmp_path / "c.toml"))
    assert "topo.txt: line 2: OK are P2P statuses" in str(result.exception)
    assert not (tmp_path / "c.toml").exists()


def test_a_notebook_shows_a_cluster() -> None:
    """The HTML holds the table of links, and names are escaped."""
    html = load_preset("pcie-4x", 2)._repr_html_()
    assert "<table>" in html
    assert "Bisection" in html

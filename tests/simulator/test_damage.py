"""What damaged links do, or why they do nothing, said in reports and of collectives; the busiest links of a step."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from foreshard.simulator.comms.damage import apart, damage_of_collective
from foreshard.simulator.comms.single import run_one
from foreshard.simulator.files.document import parse_override
from foreshard.simulator.files.reading import read_scenario
from foreshard.simulator.results.damage import damage_of_step
from foreshard.simulator.results.link_load import LinkLoads
from foreshard.simulator.results.report import report
from foreshard.simulator.step.prediction import Prediction
from foreshard.topologies.cli import assemble
from foreshard.topologies.errors import InputError
from foreshard.topologies.presets import load_preset

NIC, NVLINK, SOCKETS = "node0/nic3<->*", "node1/gpu*->*nvswitch", "node0/cpu0<->node0/cpu1"


def prediction(*overrides, **degrade):
    changes = [f'cluster.degrade."{pattern}"={factor}' for pattern, factor in degrade.items()]
    return Prediction(read_scenario("mlperf-dcnv2-p5", ["cluster.nodes=2", *overrides, *changes]))


# -- a step --------------------------------------------------------------------------------------------------------


def test_a_whole_machine_has_nothing_to_tell():
    told = report(prediction())
    assert told.damage == ()
    assert "Damaged links" not in told.to_text()


def test_a_damage_that_costs_time_says_how_much_and_of_what():
    (found,) = damage_of_step(prediction(**{NIC: 0.5}))
    assert found.links == 4
    assert found.whole_step_time_s == prediction().step_time_s
    assert found.step_time_s == prediction(**{NIC: 0.5}).step_time_s > found.whole_step_time_s
    longer = (found.step_time_s - found.whole_step_time_s) * 1e3
    assert found.reason.startswith(f"the step takes {longer:.3f} ms longer: output_dist")


def test_a_damaged_link_that_nothing_crosses_is_called_unused():
    source = prediction(**{SOCKETS: 0.5})
    (found,) = damage_of_step(source)
    assert (found.nbytes, found.busy_s) == (0.0, 0.0)
    assert found.step_time_s == found.whole_step_time_s
    assert found.reason == "unused: no bytes of this step cross it"
    assert f"{SOCKETS}: unused" in report(source).to_text()


def test_a_damage_that_other_work_hides_says_so():
    """On one node the host bounds the step, whatever a little less NVLink does to its exchanges."""
    (found,) = damage_of_step(prediction("cluster.nodes=1", **{"node0/gpu*->*nvswitch": 0.9}))
    assert found.nbytes > 0
    assert found.step_time_s == pytest.approx(found.whole_step_time_s, rel=1e-9)
    assert "no change of the step" in found.reason
    assert "behind other work" in found.reason


def test_a_damage_beside_the_bottleneck_names_the_bottleneck():
    """Half of host memory's bandwidth is still more than the PCIe uplinks of a p5 take."""
    (found,) = damage_of_step(prediction(**{"node0/mem0*": 0.5}))
    assert found.nbytes > 0
    assert found.reason.startswith("no change, it is not the bottleneck: copy_batch_to_device")
    assert found.reason.endswith("is bound by node0/cpu0->node0/pcie0")


def test_a_missing_link_sends_its_bytes_another_way():
    (found,) = damage_of_step(prediction("cluster.preset=p4d.24xlarge", **{NIC: 0}))
    assert found.busy_s is None
    assert found.reason.startswith("missing, its bytes go another way; the step takes")


def test_a_factor_of_one_damages_nothing():
    (found,) = damage_of_step(prediction(**{NIC: 1}))
    assert found.step_time_s == found.whole_step_time_s
    assert found.reason == "a factor of 1: nothing is damaged"


def test_an_operation_that_leaves_room_on_what_is_left_says_so():
    """Of replicated tables only the dense all-reduce crosses NICs, by NVLS trees that reach less than 97 % of them."""
    replicated = ('plan={ default = "data_parallel" }', "workload.tables=criteo-kaggle")
    (found,) = damage_of_step(prediction(*replicated, **{NIC: 0.97}))
    assert found.step_time_s == found.whole_step_time_s
    assert found.reason == "no change: what is left of it is more than dense_all_reduce, the longest over it, takes"


def test_every_damage_is_told_beside_the_others():
    """Without one of two the other stays: what both cost together is not what they cost one by one."""
    both = prediction(**{NIC: 0.5, NVLINK: 0.9})
    first, second = damage_of_step(both)
    assert first.whole_step_time_s == prediction(**{NVLINK: 0.9}).step_time_s
    assert second.whole_step_time_s == prediction(**{NIC: 0.5}).step_time_s
    assert first.step_time_s == second.step_time_s == both.step_time_s


def test_damage_of_averaged_steps_is_that_of_the_mean_step():
    layout = ("layout.sharding_group_size=8", "layout.sync=weights", "layout.sync_interval=10")
    (found,) = damage_of_step(prediction(*layout, **{NIC: 0.5}))
    assert found.whole_step_time_s == prediction(*layout).step_time_s
    assert "replica_sync.weights takes" in found.reason


def test_the_report_has_it_in_its_json_too():
    told = report(prediction(**{NIC: 0.5, SOCKETS: 0.5})).to_dict()
    assert [item["pattern"] for item in told["damage"]] == [NIC, SOCKETS]
    assert [item["reason"].split(":")[0] for item in told["damage"]][1] == "unused"
    assert json.dumps(told["damage"], allow_nan=False)


# -- how it is written -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        'cluster.degrade={"node0/nic3<->*" = 0.5}',
        'cluster.degrade."node0/nic3<->*"=0.5',
        "cluster.degrade.node0/nic3<->*=0.5",
        " cluster.degrade.node0/nic3<->* = 0.5",
    ],
)
def test_a_pattern_is_written_as_a_table_or_as_a_key_with_or_without_quotes(written):
    scenario = read_scenario("mlperf-dcnv2-p5", ["cluster.nodes=2", written])
    assert scenario.cluster.degrade == (("node0/nic3<->*", 0.5),)


def test_patterns_add_up():
    changes = ['cluster.degrade={"node0/nic3<->*" = 0.5}', "cluster.degrade.node1/nic0->leaf0=0"]
    scenario = read_scenario("mlperf-dcnv2-p5", ["cluster.nodes=2", *changes])
    assert dict(scenario.cluster.degrade) == {"node0/nic3<->*": 0.5, "node1/nic0->leaf0": 0}


def test_a_key_without_a_pattern_or_with_a_wrong_factor_is_refused():
    with pytest.raises(InputError, match="readable"):
        parse_override("cluster.degrade.node0/nic3<->*=half of it, perhaps")
    with pytest.raises(InputError, match=r"from 0 \(missing\) to 1"):
        read_scenario("mlperf-dcnv2-p5", ["cluster.degrade.node0/nic3<->*=2"])
    with pytest.raises(InputError, match="not a dotted key"):
        parse_override("cluster.nodes/x=1")


# -- a collective of its own -----------------------------------------------------------------------------------------


def run(*arguments):
    result = CliRunner().invoke(assemble(), ["collective", "--cluster", "p5.48xlarge", "--nodes", "2", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_collective_says_what_damage_does_to_it():
    cluster = load_preset("p5.48xlarge", 2, {NIC: 0.5, SOCKETS: 0.5, NVLINK: 0.99})
    slow, unused, masked = damage_of_collective(cluster, [run_one(cluster, "all_to_all", 2.0**30)])
    assert slow.whole_time_s == run_one(cluster.mended(NIC), "all_to_all", 2.0**30).time_s < slow.time_s
    assert slow.reason.startswith("takes ")
    assert (unused.link_bytes, unused.reason) == (0.0, "unused: no bytes of it cross them")
    assert masked.link_bytes > 0
    assert masked.reason == "no change, they are not the bottleneck: it is bound by node0/nic3->leaf0"


def test_a_collective_that_takes_less_than_what_is_left_says_so():
    """An all_reduce by NVLS trees is bound by the NICs, of which it reaches less than 97 %."""
    cluster = load_preset("p5.48xlarge", 2, {NIC: 0.97})
    (found,) = damage_of_collective(cluster, [run_one(cluster, "all_reduce", 2.0**30)])
    assert found.time_s == found.whole_time_s
    assert found.reason == "no change: what is left of them is more than it takes"


def test_times_have_as_many_decimals_as_tell_them_apart():
    assert apart("us", 1e-3, 2e-3) == ["1000.0 us", "2000.0 us"]
    assert apart("us", 1e-3, 1.000002e-3) == ["1000.000 us", "1000.002 us"]
    assert apart("ms", 3e-8) == ["0.00003 ms"]
    assert apart("ms", 5e-3) == ["5.000 ms"]


def test_the_collective_command_takes_damage_and_prints_the_sentence():
    text = run("--kind", "all_to_all", "--bytes", "1GiB", "--degrade", f"{NIC}=0.5", "--degrade", f"{SOCKETS}=0.5")
    assert f"damaged: {NIC} x 0.5, 1.0 GiB: takes " in text
    assert f"damaged: {SOCKETS} x 0.5, 1.0 GiB: unused" in text
    rows = json.loads(run("--kind", "all_gather", "--bytes", "1MiB,1GiB", "--degrade", f"{NIC}=0", "--json"))
    for row in rows:
        (damage,) = row["damage"]
        assert damage["time_s"] == row["time_s"] >= damage["whole_time_s"]
        assert "another way" in damage["reason"]


def test_a_pattern_that_names_no_link_is_refused():
    result = CliRunner().invoke(
        assemble(),
        ["collective", "--cluster", "p5.48xlarge", "--kind", "all_reduce", "--bytes", "1MiB", "--degrade", "nic9=0.5"],
    )
    assert result.exit_code != 0


# -- the busiest links -----------------------------------------------------------------------------------------------


def test_the_busiest_links_add_up_to_what_crosses_them():
    source = prediction()
    told = report(source)
    loads = LinkLoads(source.trace, source.program(source.shown_sync), source.cluster)
    names = {source.cluster.link_name(link): link for link in range(len(source.cluster.link_usable))}
    assert [link.busy_s for link in told.links] == sorted((link.busy_s for link in told.links), reverse=True)
    for link in told.links:
        assert link.nbytes == pytest.approx(source.trace.link_bytes[names[link.link]])
        assert sum(nbytes for _, nbytes in link.operations) == pytest.approx(link.nbytes)
        assert loads.ops_over(names[link.link]).keys() == set(
            np.unique([transfer.op for transfer in loads.transfers(names[link.link])]).tolist()
        )
    by_kind = {link.kind: link for link in told.links}
    assert by_kind["dram"].operations[0][0] == "copy_batch_to_device"
    assert any(line.startswith(by_kind["network"].link) for line in told.to_text().splitlines())

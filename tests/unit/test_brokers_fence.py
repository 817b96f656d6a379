"""Brokers that are fenced by hand, unfenced, moved, and removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.driver.report import Report
from stratalog.jobs import brokers as job
from stratalog.partitions.errors import InvalidCallError, UnknownBrokerError
from stratalog.partitions.paths import BROKER_FILE
from stratalog.partitions.root import format_root
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, codes, led_by_each, live_and_shared, rows_of, the_failure

live, shared = live_and_shared(led_by_each)


@pytest.fixture
def disks(tmp_path: Path) -> LiveCluster:
    return led_by_each(tmp_path, on_disk=True)


def led_by(live: LiveCluster, broker: int, topic: str = "t") -> int:
    """The partition that a broker leads."""
    return next(p for p in range(3) if live.leader(topic, p) == broker)


def states(report: Report) -> dict[object, object]:
    return {row["broker"]: row["state"] for row in report.rows}


# ------------------------------------------------------------------------------- fence, unfence


def test_a_fenced_broker_leads_nothing_and_is_in_no_isr(live: LiveCluster) -> None:
    partition = led_by(live, 2)
    report = live.cluster.brokers.fence(2).raise_for_failures()
    leader = live.leader(partition=partition)
    assert report.rows == [
        {
            "broker": 2,
            "was": "unfenced",
            "led": 1,
            "leaders_after": f"{leader}: 1",
            "without_leader": 0,
            "partitions_without_leader": "",
            "left_isrs": 3,
        }
    ]
    assert all(live.isr(partition=p) == {1, 3} for p in range(3))
    live.append({0: ["b0"], 1: ["b1"], 2: ["b2"]}).raise_for_failures()
    assert live.read() == {p: [f"a{p}", f"b{p}"] for p in range(3)}


def test_a_plan_says_the_same_and_changes_nothing(live: LiveCluster) -> None:
    with live.unchanged():
        planned = live.cluster.brokers.fence([2], dry_run=True)
    assert planned.dry_run
    assert planned.rows == live.cluster.brokers.fence([2]).rows


def test_fencing_again_changes_nothing(live: LiveCluster) -> None:
    live.cluster.brokers.fence(2)
    with live.unchanged():
        assert rows_of(live.cluster.brokers.fence(2), "was", "led", "left_isrs") == [("fenced by hand", 0, 0)]


def test_a_broker_that_a_probe_has_fenced_can_be_held(live: LiveCluster) -> None:
    ports = ports_of(live.cluster)
    broker_file = live.store(2).read(BROKER_FILE)
    live.store(2).delete([BROKER_FILE])
    probe_brokers(ports.metadata, ports.storage)
    assert rows_of(live.cluster.brokers.fence(2), "was") == [("fenced",)]
    live.store(2).create(BROKER_FILE, broker_file)
    probe_brokers(ports.metadata, ports.storage)
    assert live.cluster.image.brokers[2].fenced_by_hand


def test_unfencing_brings_a_broker_back_with_all_it_holds(live: LiveCluster) -> None:
    live.cluster.brokers.fence(2).raise_for_failures()
    live.append({0: ["b0"], 1: ["b1"], 2: ["b2"]}).raise_for_failures()
    with live.unchanged():
        planned = live.cluster.brokers.unfence(2, dry_run=True)
    report = live.cluster.brokers.unfence(2)
    assert planned.rows == report.rows
    assert rows_of(report, "broker", "was", "now", "leads") == [(2, "fenced by hand", "unfenced", 0)]
    live.cluster.replicate().raise_for_failures()
    assert all(live.isr(partition=p) == {1, 2, 3} for p in range(3))
    with live.unchanged():
        assert rows_of(live.cluster.brokers.unfence(2), "was", "now") == [("unfenced", "as before")]


def test_unfencing_shows_what_a_broker_leads_then(live: LiveCluster) -> None:
    """The broker was the last member of every ISR, and the waiting partitions get a leader again."""
    live.cluster.brokers.fence([1, 3, 2], force=True).raise_for_failures()
    assert rows_of(live.cluster.brokers.unfence(2), "broker", "leads") == [(2, 3)]


def test_a_root_that_is_another_incarnation_by_now_is_registered_as_such(live: LiveCluster) -> None:
    """The disk was changed while the broker was fenced."""
    live.cluster.brokers.fence(2).raise_for_failures()
    live.wipe(2)
    found = format_root(live.store(2), "c", 2, live.new_id)
    assert rows_of(live.cluster.brokers.unfence(2), "now") == [
        ("registered again, because its root is a different incarnation",)
    ]
    broker = live.cluster.image.brokers[2]
    assert (broker.directory_id, broker.fenced, broker.fenced_by_hand) == (found.directory_id, False, False)


def test_a_root_that_does_not_answer_is_not_unfenced_and_the_others_are(disks: LiveCluster) -> None:
    disks.cluster.brokers.fence([2, 3]).raise_for_failures()
    with disks.unreachable(2):
        report = disks.cluster.brokers.unfence([2, 3], check=False)
    assert the_failure(report).startswith("broker 2: BROKER_NOT_AVAILABLE")
    brokers = disks.cluster.image.brokers
    assert (brokers[2].fenced_by_hand, brokers[3].fenced) == (True, False)


@pytest.mark.parametrize("what", ["fence", "unfence", "decommission"])
def test_an_unknown_broker_is_refused_and_nothing_is_changed(shared: LiveCluster, what: str) -> None:
    with shared.unchanged(), pytest.raises(UnknownBrokerError, match="broker 9"):
        getattr(shared.cluster.brokers, what)([9, 2])


# ------------------------------------------------------------------------------- the last member


def test_the_last_possible_leader_is_fenced_only_by_force(live: LiveCluster) -> None:
    """The error names the partitions, and a plan shows them."""
    live.topic("alone", copies=1, partitions=3)
    partition = led_by(live, 2, "alone")
    with live.unchanged():
        with pytest.raises(InvalidCallError, match=rf"alone-{partition} would be left without a leader.*--force"):
            live.cluster.brokers.fence(2)
        planned = live.cluster.brokers.fence(2, dry_run=True)
    assert rows_of(planned, "led", "without_leader", "partitions_without_leader") == [(2, 1, f"alone-{partition}")]
    assert planned.totals == {"without_leader": 1}
    (note,) = planned.notes
    assert note.startswith(f"without --force this is refused: alone-{partition}")
    assert rows_of(live.cluster.brokers.fence(2, force=True), "without_leader") == [(1,)]
    view = live.replicas("alone", partition).view
    assert (view.leader, view.isr) == (None, (2,))
    live.cluster.brokers.unfence(2).raise_for_failures()
    assert live.leader("alone", partition) == 2


def test_two_brokers_that_have_a_partition_between_them_are_not_fenced_together(live: LiveCluster) -> None:
    live.topic("pair", copies=2, partitions=3)
    pair = next(p for p in range(3) if live.isr("pair", p) == {2, 3})
    with live.unchanged(), pytest.raises(InvalidCallError, match=f"pair-{pair} would be left without a leader"):
        live.cluster.brokers.fence([2, 3])
    live.cluster.brokers.fence(2).raise_for_failures()
    with live.unchanged(), pytest.raises(InvalidCallError, match=f"pair-{pair} would be left"):
        live.cluster.brokers.fence(3)


def test_a_long_list_of_partitions_is_cut(live: LiveCluster) -> None:
    live.topic("alone", copies=1, partitions=24)
    with pytest.raises(InvalidCallError, match=r"(alone-\d+, ){4}alone-\d+ and 3 more would be left"):
        live.cluster.brokers.fence(2)


# --------------------------------------------------------------------------------- decommission


def test_a_broker_with_replicas_is_not_decommissioned(live: LiveCluster) -> None:
    for dry_run in (True, False):
        with live.unchanged(), pytest.raises(InvalidCallError, match=r"broker 2 still has replicas of t-0"):
            live.cluster.brokers.decommission(2, dry_run=dry_run)


def test_a_metadata_voter_is_not_decommissioned(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    with live.unchanged(), pytest.raises(InvalidCallError, match="broker 1 is a metadata voter"):
        live.cluster.brokers.decommission([1, 2])


def test_a_broker_without_replicas_is_taken_out_and_comes_back_by_registration(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    with live.unchanged():
        live.cluster.brokers.decommission(3, dry_run=True).raise_for_failures()
    assert rows_of(live.cluster.brokers.decommission([3, 3]), "broker", "now") == [(3, "unregistered")]
    assert live.cluster.image.brokers.keys() == {1, 2}
    assert states(live.cluster.brokers.list())[3] == "not registered"
    live.topic(copies=2)
    live.append(["a"]).raise_for_failures()
    live.cluster.brokers.register([3]).raise_for_failures()
    assert live.cluster.image.brokers.keys() == {1, 2, 3}


# ----------------------------------------------------------------------- a root on another disk


def move(live: LiveCluster, broker: int) -> LiveCluster:
    """Copy a broker's root to another folder, and change the cluster file."""
    shutil.copytree(live.root(broker), live.folder / "elsewhere", symlinks=True)
    shutil.rmtree(live.root(broker))
    live.file.write_text(live.file.read_text().replace(f'"b{broker}"', '"elsewhere"'))
    live.cluster = live.driver()
    return live


@pytest.mark.slow
def test_a_root_moved_while_its_broker_was_fenced_comes_back_as_a_trusted_copy(disks: LiveCluster) -> None:
    """Nothing is copied: the root has its records from before the fence, and lacks later ones."""
    disks.cluster.brokers.fence(2).raise_for_failures()
    move(disks, 2)
    with_ports(probe_brokers, ports_of(disks.cluster))()
    assert disks.cluster.image.brokers[2].fenced_by_hand
    report = disks.cluster.bootstrap(2, trust_copy=True).raise_for_failures()
    assert report.totals["copied_bytes"] == 0
    assert all(disks.isr(partition=p) == {1, 2, 3} for p in range(3))
    assert states(disks.cluster.brokers.list()) == {1: "ok", 2: "ok", 3: "ok"}
    assert with_ports(probe_brokers, ports_of(disks.cluster))().notes == ()


def test_the_last_member_moved_and_trusted_leads_again_with_all_it_had(disks: LiveCluster) -> None:
    disks.topic("alone", copies=1, partitions=3)
    partition = led_by(disks, 2, "alone")
    disks.append({partition: ["a"]}, "alone").raise_for_failures()
    disks.cluster.brokers.fence(2, force=True).raise_for_failures()
    move(disks, 2).cluster.brokers.register([2], trust_copy=True).raise_for_failures()
    assert disks.leader("alone", partition) == 2
    assert disks.read("alone", partitions=[partition]) == {partition: ["a"]}


def test_trust_takes_effect_even_if_a_probe_was_faster(disks: LiveCluster) -> None:
    """The root was moved without a fence, a run has registered it as another incarnation, and its partition has no
    leader. No other broker has led since then, so the copy can still be declared faithful.
    """
    disks.topic("alone", copies=1, partitions=3)
    partition = led_by(disks, 2, "alone")
    disks.append({partition: ["a"]}, "alone").raise_for_failures()
    with_ports(probe_brokers, ports_of(move(disks, 2).cluster))()
    assert disks.replicas("alone", partition).view.isr == ()
    disks.cluster.brokers.register([2], trust_copy=True).raise_for_failures()
    assert disks.leader("alone", partition) == 2
    assert disks.read("alone", partitions=[partition]) == {partition: ["a"]}


def test_without_trust_a_moved_root_leaves_every_isr(disks: LiveCluster) -> None:
    move(disks, 2).cluster.brokers.register([2]).raise_for_failures()
    assert all(disks.isr(partition=p) == {1, 3} for p in range(3))
    disks.cluster.replicate().raise_for_failures()
    assert all(disks.isr(partition=p) == {1, 2, 3} for p in range(3))
    disks.cluster.verify().raise_for_failures()


@pytest.mark.parametrize("formatted", [True, False])
def test_a_root_that_was_reformatted_or_never_formatted_is_no_copy(live: LiveCluster, formatted: bool) -> None:
    live.wipe(2)
    if formatted:
        format_root(live.store(2), "c", 2, live.new_id)
    before = live.cluster.image
    report = live.cluster.brokers.register([2], trust_copy=True, check=False)
    assert codes(report) == {"INVALID_REQUEST" if formatted else "BROKER_NOT_AVAILABLE": 1}
    assert live.cluster.image == before
    planned = live.cluster.bootstrap(2, trust_copy=True, dry_run=True, check=False)
    assert codes(planned) == codes(report)
    live.cluster.bootstrap(2, trust_copy=True, check=False)
    assert formatted or live.store(2).list("") == []


@pytest.mark.slow
def test_a_cluster_that_was_moved_as_a_whole_waits_for_a_person(disks: LiveCluster, tmp_path: Path) -> None:
    """The cluster's metadata has moved, too, so it is unknown whether this metadata is the latest."""
    there = tmp_path / "there"
    shutil.copytree(disks.folder, there, symlinks=True, ignore=shutil.ignore_patterns("there"))
    disks.file, disks.folder = there / "cluster.toml", there
    disks.cluster = disks.driver()
    with disks.unchanged():
        (note,) = with_ports(probe_brokers, ports_of(disks.cluster))().notes
        assert codes(disks.cluster.brokers.register(check=False)) == {"STALE_BROKER_EPOCH": 3}
    assert "--trust-copy" in note
    disks.cluster.bootstrap([1, 2, 3], trust_copy=True).raise_for_failures()
    assert with_ports(probe_brokers, ports_of(disks.cluster))().notes == ()
    assert all(disks.isr(partition=p) == {1, 2, 3} for p in range(3))
    assert disks.read() == {p: [f"a{p}"] for p in range(3)}


# -------------------------------------------------------------------------- register, describe


def test_registering_all_leaves_those_alone_that_were_fenced_by_hand(live: LiveCluster) -> None:
    live.cluster.brokers.fence(2).raise_for_failures()
    with live.unchanged():
        live.cluster.brokers.register().raise_for_failures()
    live.cluster.brokers.register([2]).raise_for_failures()
    assert not live.cluster.image.brokers[2].fenced


def test_a_registration_knows_the_root_it_saw(live: LiveCluster) -> None:
    assert all(broker.root for broker in live.cluster.image.brokers.values())
    with live.unchanged():
        live.cluster.brokers.register([1, 2, 3]).raise_for_failures()


def test_describe_shows_the_state_of_every_broker(disks: LiveCluster) -> None:
    disks.cluster.brokers.fence(2).raise_for_failures()
    shutil.copy2(disks.root(3) / BROKER_FILE, disks.root(3) / "copy")
    (disks.root(3) / BROKER_FILE).unlink()
    shutil.copy2(disks.root(3) / "copy", disks.root(3) / BROKER_FILE)
    with disks.unchanged():
        assert states(disks.cluster.brokers.list()) == {
            1: "ok",
            2: "fenced by hand",
            3: "its root was replaced: bootstrap the broker",
        }
    with disks.unreachable(2):
        assert states(disks.cluster.brokers.list())[2] == "fenced by hand, unreachable"
    (disks.root(3) / BROKER_FILE).write_text("{")
    report = disks.cluster.brokers.list()
    assert states(report)[3] == "CORRUPT_MESSAGE"
    assert the_failure(report).startswith("broker 3: CORRUPT_MESSAGE")


# ------------------------------------------------------------------------------------- the job


@pytest.mark.parametrize(
    ("options", "status", "operation"),
    [
        (["fence", "2", "--dry-run"], 0, "brokers fence"),
        (["fence", "2"], 0, "brokers fence"),
        (["unfence", "2"], 0, "brokers unfence"),
        (["decommission", "2", "--yes"], 2, "brokers"),
        (["add", "2"], 2, "brokers"),
        (["add", "2", "--if-not-exists"], 0, "brokers add"),
        (["unfence", "2", "--force"], 2, None),
        (["unfence"], 2, None),
    ],
)
def test_the_job_has_one_report_and_status(
    disks: LiveCluster, capsys: pytest.CaptureFixture[str], options: list[str], status: int, operation: str | None
) -> None:
    argv = [*options, "--cluster", str(disks.file), "--json"]
    assert job.main(argv) == status
    if operation is not None:
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert report["operation"] == operation
        assert report["ok"] == (status == 0)

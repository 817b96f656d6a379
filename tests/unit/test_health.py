"""Health: each fault is produced on a real cluster of folders; ``health`` alone names it, and so do the page and
the metrics. The shown command repairs it. The time is the system's; to simulate the past, a clock is set back.
"""

from __future__ import annotations

import json
import os
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest

from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.health.finding import WIDTH, Commands, HealthFinding, Severity
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, partition_for
from stratalog.jobs.main import main
from stratalog.partitions.errors import StorageAuthorizationError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, fence, unfence
from tests.unit.faulty_store import Faults
from tests.unit.health_harness import HOUR_MS, SMALL, Patient, files, in_good_health
from tests.unit.transact_harness import rows
from tests.unit.without_privileges import run_without_privileges


@pytest.fixture
def patient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Patient:
    return in_good_health(Patient(tmp_path, capsys))


def test_a_cluster_that_nobody_maintains_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Patient(tmp_path, capsys)
    assert [(row["severity"], row["subjects"]) for row in made.found().values()] == [("warning", "maintain")]
    made.repair()


@pytest.mark.parametrize("noticed", [False, True], ids=["before a run", "after a run has fenced it"])
@pytest.mark.slow
def test_a_follower_that_is_gone_is_one_finding(patient: Patient, noticed: bool) -> None:
    gone = patient.live.followers()[-1]
    with patient.live.unreachable(gone):
        if noticed:
            patient.job("maintain", "--only", "replicate")
        found = patient.found()
        assert [*found] == ["OfflineLogDirectoryCount"], "one cause is one finding"
        assert found["OfflineLogDirectoryCount"]["subjects"] == f"broker {gone}"
        assert found["OfflineLogDirectoryCount"]["affected"] == "UnderReplicatedPartitions 1"
        assert "1 partition lacks the broker's copies" in found["OfflineLogDirectoryCount"]["what"]
        assert {row["severity"] for row in found.values()} == {"error"}
        figures = patient.figures()
    assert (figures["UnderReplicatedPartitions"], figures["OfflinePartitionsCount"]) == (1, 0)
    patient.follow(found["OfflineLogDirectoryCount"])
    patient.repair()
    assert patient.figures()["UnderReplicatedPartitions"] == 0


@pytest.mark.slow
def test_a_broker_that_lost_its_disk_is_found_with_the_command_that_restores_it(patient: Patient) -> None:
    """The sentence includes the command for a lost folder, because an empty folder may be a volume that is not
    mounted.
    """
    lost = patient.live.followers()[-1]
    patient.live.wipe(lost)
    found = patient.found()["OfflineLogDirectoryCount"]
    assert f"bootstrap {lost}" in found["what"]
    assert patient.job("bootstrap", str(lost)) == 0
    patient.repair()


@pytest.mark.slow
def test_a_broker_that_is_fenced_by_hand_is_found(patient: Patient) -> None:
    broker = patient.live.followers()[-1]
    fence(patient.live, broker)
    found = patient.found()
    assert found["FencedBrokerCount"]["severity"] == "error", "a partition lacks a copy"
    assert "brokers unfence" in found["FencedBrokerCount"]["do"]
    assert [*found] == ["FencedBrokerCount"]
    patient.repair()


@pytest.mark.slow
def test_an_isr_below_min_insync_replicas_is_an_error(patient: Patient) -> None:
    patient.live.cluster.topics.alter_configs("t", {"min.insync.replicas": "3"})
    gone = patient.live.followers()[-1]
    with patient.live.unreachable(gone):
        patient.job("replicate")
        found = patient.found()["OfflineLogDirectoryCount"]
        assert (found["severity"], found["affected"]) == ("error", "UnderMinIsrPartitionCount 1")
        assert "acks=all is refused" in found["what"]
        assert patient.figures()["UnderMinIsrPartitionCount"] == 1
        assert patient.job("describe", "--topics", "t") == 1
    patient.repair()
    assert patient.job("describe") == 0


@pytest.mark.slow
def test_a_partition_without_a_leader_is_found_with_its_broker(patient: Patient) -> None:
    patient.live.topic("u", copies=1)
    patient.live.fill("a", "u")
    only = patient.live.leader("u")
    if only == 1:  # broker 1 votes
        patient.job("reassign", "--topics", "u", "--drain", "1")
        only = patient.live.leader("u")
    with patient.live.unreachable(only):
        for _ in range(2):  # once before a run has noticed, and once after
            found = patient.found()
            affected = found["OfflineLogDirectoryCount"]["affected"]
            assert affected.startswith("OfflinePartitionsCount 1")
            assert "elect --unclean" in found["OfflineLogDirectoryCount"]["what"]
            assert patient.figures()["OfflinePartitionsCount"] == 1
            patient.job("replicate")
        assert patient.job("describe", "--topics", "u") == 1
    patient.follow(found["OfflineLogDirectoryCount"])
    patient.repair()


@pytest.mark.slow
def test_the_only_voter_is_gone(patient: Patient) -> None:
    with patient.live.unreachable(1):
        found = patient.found()
        assert [*found] == ["current-leader"]
        report = patient.live.cluster.health()  # by a driver that knows the cluster
        assert report.rows[0]["finding"] == "current-leader"
        assert not report.ok
    patient.follow(found["current-leader"])
    patient.repair()


@pytest.mark.slow
def test_a_voter_of_three_that_lost_its_disk_is_found_and_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Patient(tmp_path, capsys, voters=(1, 2, 3))
    made.job("maintain")
    assert made.found() == {}
    made.live.wipe(3)
    assert made.found()["OfflineLogDirectoryCount"]["affected"] == "offline-voter 1"
    made.job("bootstrap", "3")
    assert "quorum replace-voter 3" in made.found()["offline-voter"]["do"]
    made.repair()


@pytest.mark.slow
def test_followers_that_lag_are_an_error(patient: Patient) -> None:
    live = patient.live
    live.append(["x"], acks="leader").raise_for_failures()
    assert patient.found() == {}
    assert patient.figures()["MaxLag"] == 1
    replica = live.replica(live.leader())
    last = replica.log().chain[-1].file.object.name
    long_ago_s = live.clock.now_ms() / 1000 - 7200
    os.utime(live.root(live.leader()) / last, (long_ago_s, long_ago_s))
    found = patient.found()["MaxLag"]
    assert found["severity"] == "error"
    assert "lack 2 records" in found["what"]  # two followers
    assert found["since"] is not None
    patient.repair()
    assert patient.figures()["MaxLag"] == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("which", ["leader", "follower"])
@pytest.mark.parametrize("how", ["cut", "gone"])
@pytest.mark.slow
def test_a_damaged_file_is_found_and_repaired(patient: Patient, which: str, how: str) -> None:
    live = patient.live
    file = files(live, live.leader() if which == "leader" else live.followers()[0])[1]
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-10])
    else:
        file.unlink()
    found = patient.found()["damaged-replicas"]
    assert (found["severity"], found["subjects"]) == ("error", "t-0")
    patient.repair()


@pytest.mark.slow
def test_damage_that_no_copy_can_repair_stays_named_until_a_read_succeeds(patient: Patient) -> None:
    """No listing shows a flipped bit: only a full read finds it, and the finding is stored."""
    live = patient.live
    kept = {}
    for broker in (1, 2, 3):
        file = files(live, broker)[1]
        kept[file] = file.read_bytes()
        flipped = bytearray(kept[file])
        flipped[20] ^= 1
        file.write_bytes(bytes(flipped))
    assert patient.found() == {}
    week = 8 * 24 * HOUR_MS
    live.clock.advance_ms(week)
    assert not live.driver().maintain(check=False).ok
    live.clock.advance_ms(-week)
    found = patient.found()["damaged-replicas"]
    assert found["subjects"] == "t-0"
    assert "heal --topics t" in found["do"]
    patient.follow(found)
    assert "damaged-replicas" in patient.found()
    for file, content in kept.items():
        file.write_bytes(content)
    patient.follow(found)
    patient.repair()


READ_ONLY = """
import sys
from stratalog.jobs.main import job_of, main
sys.exit(main(["health", "--json", "--cluster", sys.argv[1]]) - int(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_leader_whose_folder_takes_no_writes(patient: Patient) -> None:
    """File permissions do not restrict root, so another process without its rights looks."""
    live = patient.live
    folder = live.root(live.leader()) / live.replica(live.leader()).folder
    folder.chmod(0o555)
    answer = json.loads(run_without_privileges(READ_ONLY, [str(live.file), "1"]).splitlines()[-1])
    (row,) = answer["rows"]
    assert (row["severity"], row["finding"]) == ("error", "read-only-log-dir")
    assert str(folder) in row["what"]
    patient.follow(row)
    answer = json.loads(run_without_privileges(READ_ONLY, [str(live.file), "0"]).splitlines()[-1])
    assert answer["rows"] == []


@pytest.mark.slow
def test_a_disk_that_is_nearly_full_is_found(patient: Patient) -> None:
    patient.live.cluster.topics.alter_configs(None, {"health.log.dir.max.used.ratio": "0"})
    found = patient.found()["log-dir-used-ratio"]
    assert "bytes are free" in found["what"]
    patient.follow(found)
    patient.live.cluster.topics.alter_configs(None, SMALL)
    patient.repair()


@pytest.mark.slow
def test_records_that_should_have_expired_by_now(patient: Patient) -> None:
    """Records have their own times, which a listing does not show."""
    live = patient.live
    live.cluster.topics.alter_configs("t", {"retention.ms": "1000"})
    assert patient.found() == {}, "the files are new"
    long_ago_s = live.clock.now_ms() / 1000 - 2 * 3600
    for file in files(live, live.leader()):
        os.utime(file, (long_ago_s, long_ago_s))
    found = patient.found()["retention-lag"]
    assert (found["severity"], found["subjects"]) == ("error", "t-0")
    patient.repair()


@pytest.mark.slow
def test_a_lag_that_nobody_can_read_is_not_0(tmp_path: Path) -> None:
    """If the leader of the group's partition is away, another member of the ISR answers; if all are away, the
    figure is absent, and a finding says so."""
    live = LiveCluster(tmp_path, brokers=4, on_disk=True, voters=[4])
    live.cluster.topics.alter_configs(None, {"offsets.topic.replication.factor": "2"})
    live.topic(copies=4)
    live.append(list("abcde"))
    live.cluster.groups.commit("first", {("t", 0): 5})
    views = live.cluster.image.views(OFFSETS_TOPIC)
    names = (f"g{number}" for number in range(1000))
    group, view = next(
        (name, views[partition_for(name, len(views))])
        for name in names
        if 4 not in views[partition_for(name, len(views))].replicas
        and partition_for(name, len(views)) != partition_for("first", len(views))
    )
    live.cluster.groups.commit(group, {("t", 0): 2})
    live.cluster.groups.delete("first")
    live.cluster.replicate()
    assert view.leader is not None
    (follower,) = set(view.replicas) - {view.leader}
    with live.unreachable(view.leader):
        report = live.driver().health()
        assert report.totals["records-lag-max"] == 3
        figures = ("ActiveBrokerCount", "FencedBrokerCount", "OfflineLogDirectoryCount")
        assert [report.totals[name] for name in figures] == [3, 1, 1]
        with_ports(probe_brokers, ports_of(live.driver()))()  # the probe fences it
        fenced = live.driver().health().totals
        assert [fenced[name] for name in figures] == [3, 1, 1]
        assert report.lags == {(group, "t"): 3}
        assert group in {row["group"] for row in live.driver().groups.list().rows}
        with live.unreachable(follower):
            report = live.driver().health()
            assert "records-lag-max" not in report.totals
            assert report.lags == {}
            causes = [one for one in report.findings if str(view) in one.affected.get("state-unread", ())]
            assert {one.kind for one in causes} == {"OfflineLogDirectoryCount"}
            assert all("of the engine's own topics cannot be read" in one.what for one in causes)
    assert live.driver().health().totals["records-lag-max"] == 3


def test_a_group_that_lags_by_too_many_records_is_an_error(patient: Patient) -> None:
    live = patient.live
    live.cluster.groups.commit("g", {("t", 0): 1}).raise_for_failures()
    assert patient.found() == {}
    assert patient.figures()["records-lag-max"] == 2
    live.cluster.topics.alter_configs(None, {"health.consumer.max.lag.records": "1"})
    found = patient.found()["records-lag-max"]
    assert (found["severity"], found["subjects"]) == ("error", "g")
    assert "2 records of t" in found["what"]
    patient.follow(found)
    live.cluster.groups.commit("g", {("t", 0): 3}).raise_for_failures()
    assert patient.found() == {}


@pytest.mark.parametrize(
    ("committed", "old", "limit", "late"),
    [
        (0, [0, 1, 2], "3600000", True),
        (1, [1], "3600000", True),
        (2, [0, 1], "3600000", False),
        (1, [0, 2], "3600000", True),
        (3, [0, 1, 2], "3600000", False),
        (0, [0, 1, 2], "-1", False),
        (0, [0, 1, 2], "90000000", False),
    ],
    ids=[
        *("all", "the next", "only what it has processed", "rewritten, as by a merge", "it has all"),
        *("never", "a longer limit"),
    ],
)
def test_a_group_is_found_if_it_lags_for_too_long(
    tmp_path: Path, committed: int, old: list[int], limit: str, late: bool
) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    live.cluster.topics.alter_configs(None, {**SMALL, "health.consumer.max.lag.ms": limit})
    live.topic()
    live.fill("abc")
    live.cluster.groups.commit("g", {("t", 0): committed}).raise_for_failures()
    long_ago_s = live.clock.now_ms() / 1000 - 7200
    for number in old:
        os.utime(files(live, live.leader())[number], (long_ago_s, long_ago_s))
    report = live.driver().health()
    found = [one for one in report.findings if one.kind == "records-lag-max"]
    assert [(one.subjects, one.severity) for one in found] == ([(("g",), Severity.WARNING)] if late else [])
    lag_ms = report.totals["records-lag-max-ms"]
    assert isinstance(lag_ms, int)
    assert (lag_ms >= HOUR_MS) == (late or limit != "3600000")


@pytest.mark.slow
def test_an_abandoned_transaction_is_found(patient: Patient) -> None:
    live = patient.live
    live.clock.advance_ms(-2 * HOUR_MS)
    live.driver().transactions.begin("loader", timeout_ms=1000).append_batches("t", {0: rows("x")})
    live.clock.advance_ms(2 * HOUR_MS)
    found = patient.found()["PartitionsWithLateTransactionsCount"]
    assert (found["severity"], found["subjects"]) == ("error", "loader")
    assert found["since"] is not None
    assert patient.figures()["PartitionsWithLateTransactionsCount"] == 1
    patient.repair()


def test_upkeep_that_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Patient(tmp_path, capsys)
    made.live.clock.advance_ms(-3 * HOUR_MS)
    made.live.driver().maintain().raise_for_failures()
    made.live.clock.advance_ms(3 * HOUR_MS)
    found = made.found()["upkeep"]
    assert found["severity"] == "error"
    assert {"replicate", "tier", "merge", "retain"} <= {*found["subjects"].split()}
    assert "vacuum" not in found["subjects"], "once a day"
    made.repair()


def test_the_report_is_no_wider_than_a_terminal(patient: Patient, capsys: pytest.CaptureFixture[str]) -> None:
    for topic in ("a" * 60, "b" * 60, "c" * 60):
        patient.live.topic(topic)
    with patient.live.unreachable(3):
        assert main(["health", "--cluster", str(patient.live.file)]) == 1
    text = capsys.readouterr().out
    assert "ERROR    OfflineLogDirectoryCount" in text
    assert "do: stratalog maintain --cluster" in text.replace(" \\\n      ", " ")
    long_words = str(patient.live.file), str(patient.live.root(3))
    for line in text.splitlines():
        assert len(line) <= WIDTH or any(word in line for word in long_words)


def test_a_command_in_several_lines_is_the_same_to_a_shell() -> None:
    code = f"print('{'a b ' * 50}')"
    line = Commands("/a folder/cluster.toml")("groups", "describe", "b  " * 20, code, "c" * 90)
    shown = "\n".join(
        HealthFinding(severity=Severity.INFO, kind="upkeep", subjects=("s",), what="w", do=line).lines(0)[2:]
    )
    assert shlex.split(shown.strip().removeprefix("do: ").replace("\\\n", "")) == shlex.split(line)
    assert len(shown.splitlines()) > 3


def test_a_root_that_answers_and_cannot_be_listed(tmp_path: Path) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()

    def before(uri: str, what: str, name: str) -> None:
        if uri.endswith("b3") and what == "list":
            raise StorageAuthorizationError(f"cannot list {uri}/{name}", "list", f"{uri}/{name}")

    faults.before = before
    row = live.driver().health().rows[0]
    assert (row["finding"], row["subjects"]) == ("OfflineLogDirectoryCount", "broker 3")
    assert not live.driver().describe().ok


@pytest.mark.slow
def test_a_look_costs_the_same_for_few_partitions_and_for_many(tmp_path: Path) -> None:
    """The exception is suspicious files, which are read."""
    costs = []
    for partitions in (10, 1000):
        folder = tmp_path / str(partitions)
        folder.mkdir()
        live = LiveCluster(folder, voters=(1, 2, 3))
        live.topic(partitions=partitions)
        driver = live.driver()
        idle = driver.health().counts.requests
        live.append({3: ["a"]}, acks="leader").raise_for_failures()
        behind = driver.health()
        assert behind.totals["MaxLag"] == 1
        costs.append((idle, behind.counts.requests - idle))
    assert costs[0] == costs[1]
    assert costs[0][0] <= 35
    assert costs[0][1] <= 12


def test_many_partitions_with_the_same_finding_have_one_row(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic(partitions=50)
    live.cluster.topics.alter_configs("t", {"min.insync.replicas": "2"})
    fence(live, live.followers()[0])
    (row,) = [row for row in live.driver().health().rows if row["finding"] == "FencedBrokerCount"]
    assert row["affected"] == "UnderReplicatedPartitions 50"


@pytest.mark.parametrize(
    ("away", "kinds", "affected"),
    [
        ((3,), ["OfflineLogDirectoryCount"], [{"UnderReplicatedPartitions": 60, "offline-voter": 1}]),
        (
            (2, 3),
            ["current-leader"],
            [{"OfflineLogDirectoryCount": 2, "UnderMinIsrPartitionCount": 60, "offline-voter": 2}],
        ),
        ((4,), ["OfflineLogDirectoryCount"], [{}]),
    ],
    ids=["one of three voters", "no majority", "nothing hangs on it"],
)
def test_one_cause_is_one_finding(
    tmp_path: Path, away: tuple[int, ...], kinds: list[str], affected: list[dict[str, int]]
) -> None:
    live = LiveCluster(tmp_path, brokers=4, voters=(1, 2, 3), on_disk=True)
    live.cluster.topics.alter_configs(None, {"health.log.dir.max.used.ratio": "1"})
    fence(live, 4)
    live.topic(partitions=60, min_insync_replicas="2")
    unfence(live, 4)
    live.cluster.maintain().raise_for_failures()
    with ExitStack() as mounts:
        for broker in away:
            mounts.enter_context(live.unreachable(broker))
        report = live.cluster.health()
    assert [one.kind for one in report.findings] == kinds
    assert [{kind: len(names) for kind, names in one.affected.items()} for one in report.findings] == affected


def test_a_lost_majority_names_its_voters_and_their_roots(tmp_path: Path) -> None:
    """Broker 2's root is a folder that does not exist, and broker 3's is empty."""
    live = LiveCluster(tmp_path, voters=(1, 2, 3), on_disk=True)
    live.root(2).rename(tmp_path / "away")
    with live.unreachable(3):
        (finding,) = (one for one in live.cluster.health().findings if one.kind == "current-leader")
    assert f"voter 2: the root '{live.root(2)}' does not exist" in finding.what
    assert f"voter 3 (file://{live.root(3)}): broker.json does not exist" in finding.what

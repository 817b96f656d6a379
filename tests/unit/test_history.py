"""The history: which operations write events, their content, and that no operation fails because of its event."""

from __future__ import annotations

import json
import logging
import tomllib
from dataclasses import replace
from datetime import datetime
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from stratalog import Cluster
from stratalog.engine.admin.history import EventFilter
from stratalog.engine.cluster.brokers import Brokers
from stratalog.engine.cluster.erasing import Erasing
from stratalog.engine.cluster.groups import Groups
from stratalog.engine.cluster.jobs import Jobs
from stratalog.engine.cluster.looks import Looks
from stratalog.engine.cluster.quorum import Quorum
from stratalog.engine.cluster.recorded import Frame, operation
from stratalog.engine.cluster.topics import Topics
from stratalog.engine.cluster.transactions import Transactions
from stratalog.engine.driver.origin import operations_log, origin
from stratalog.engine.driver.running import Heartbeat
from stratalog.engine.driver.tasks import Silent
from stratalog.engine.state.internal_topics import OPERATIONS_TOPIC
from stratalog.engine.state.operations import EVENT_COLUMNS, Event, event_time, from_values, to_batch
from stratalog.jobs.main import main
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import InvalidCallError, InvalidTopicError, UnknownTopicOrPartitionError
from stratalog.partitions.version import VERSION
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch
from tests.unit.restore_harness import Heir, partly_tiered

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveCluster:
    """Three brokers on folders, with a history."""
    monkeypatch.setenv("STRATALOG_HISTORY", "on")
    monkeypatch.setenv("STRATALOG_JOB", "nightly")
    monkeypatch.setenv("STRATALOG_RUN", "42")
    return LiveCluster(tmp_path, on_disk=True)


def events(cluster: Cluster, **wanted: str) -> list[tuple[object, ...]]:
    """Operation, phase and outcome, the earliest first."""
    rows = cluster.history(**wanted).rows  # type: ignore[arg-type]
    return [(row["operation"], row["phase"], row["outcome"]) for row in reversed(rows)]


def an_event() -> Event:
    return Event(
        time=event_time(1_700_000_000_123),
        operation="tier",
        phase="ended",
        outcome="done",
        user="u",
        host="h",
        run="1",
        cluster="c",
        version="0",
        arguments='{"topics": ["t"]}',
        totals={"uploaded_bytes": 5, "t/uploaded_bytes": 5},
        notes=("a note",),
        duration=12,
    )


def test_an_event_comes_back_from_its_record() -> None:
    event = an_event()
    record = to_batch(event)
    assert list(from_values(record.column("value").to_pylist())) == [event]
    assert (record.column("key").to_pylist(), event.time_ms) == (["tier"], 1_700_000_000_123)


def test_a_value_of_a_stranger_is_no_event() -> None:
    (value,) = to_batch(an_event()).column("value").to_pylist()
    assert list(from_values([None, {**value, "time": None}, {**value, "arguments": None}])) == []
    (found,) = from_values([{**value, "totals": [("a", None), ("b", 1)], "notes": [None, "n"]}])
    assert (found.totals, found.notes) == ({"b": 1}, ("n",))
    assert not EventFilter(topic="u").takes(replace(an_event(), arguments="no JSON"))


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION


READING = {
    *("Jobs.plan_replicas", "Looks.reassignments", "Looks.discarded", "Jobs.history", "Looks.new_events"),
    *("Looks.snapshots", "Looks.metrics", "Topics.list", "Topics.describe", "Topics.troubled"),
    *("Brokers.list", "Quorum.describe", "Groups.list"),
    *("Groups.committed", "Groups.lag", "Groups.lag_frame", "Groups.lag_metrics", "Transactions.list"),
    *("Transactions.describe", "Transactions.find_hanging"),
}
IN_THE_LOG = {"Transactions.begin"}


def test_every_operation_of_the_door_is_framed_but_those_that_read_or_are_in_the_log() -> None:
    framed: set[str] = set()
    others: set[str] = set()
    for group in (Jobs, Erasing, Looks, Topics, Brokers, Quorum, Groups, Transactions):
        for name, method in vars(group).items():
            if isfunction(method) and not name.startswith("_"):
                (framed if hasattr(method, "__wrapped__") else others).add(f"{group.__name__}.{name}")
    assert others == READING | IN_THE_LOG
    assert len(framed) > 30


def test_a_change_leaves_an_event_with_user_operation_and_outcome(live: LiveCluster) -> None:
    live.topic()
    (row,) = live.cluster.history().rows
    assert tuple(row) == EVENT_COLUMNS
    assert (row["operation"], row["phase"], row["outcome"]) == ("topics create", "ended", "done")
    assert (row["job"], row["run"], row["cluster"], row["version"]) == ("nightly", "42", "c", VERSION)
    assert row["user"]
    assert row["host"]
    arguments = {"name": "t", "partitions": 1, "replication_factor": 3, "configs": {"retention.ms": "-1"}}
    assert json.loads(str(row["arguments"])) == arguments
    assert live.cluster.image.topic(OPERATIONS_TOPIC).configs["remote.storage.enable"] == "true"


@pytest.mark.slow
def test_reads_appends_and_dry_runs_leave_no_event(live: LiveCluster) -> None:
    live.topic()
    before = events(live.cluster)
    live.append(["a"]).raise_for_failures()
    assert not live.cluster.topics.create("t", if_not_exists=True).rows[0]["created"]
    live.cluster.groups.commit("g", {("t", 0): 1})
    live.cluster.describe()
    live.cluster.verify(deep=True)
    live.cluster.topics.delete("t", dry_run=True)
    with pytest.raises(InvalidCallError):
        live.cluster.topics.create("t")
    assert events(live.cluster) == before


@pytest.mark.parametrize("redacted", ["configs", ("confgs",)])
def test_only_arguments_of_an_operation_can_be_redacted(redacted: Any) -> None:
    """The letters of a str, and the former name of an argument, would redact nothing."""

    def method(self: object, configs: object) -> None: ...

    with pytest.raises(TypeError, match="are not its arguments"):
        operation("x", redacted=redacted)(method)


def test_the_log_of_a_failed_operation_has_no_login(live: LiveCluster, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise InvalidCallError("no answer from https://me:hunter2@host")

    with caplog.at_level(logging.INFO, "stratalog"), pytest.raises(InvalidCallError):
        Frame(ports_of(live.cluster), "mirror", {}).around(fail)
    assert "mirror: failed: INVALID_REQUEST: no answer from https://host" in caplog.text


def test_a_destructive_change_is_reported_before_it_happens(live: LiveCluster) -> None:
    live.topic()
    live.append(["a", "b"]).raise_for_failures()
    live.cluster.topics.delete_records("t", {0: 1})
    live.cluster.recover("t", keep="brokers")
    live.cluster.topics.delete("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        live.cluster.topics.delete("t")
    assert events(live.cluster)[1:] == [
        ("delete_records", "started", None),
        ("delete_records", "ended", "done"),
        ("recover", "started", None),
        ("recover", "ended", "done"),
        ("topics delete", "started", None),
        ("topics delete", "ended", "done"),
        ("topics delete", "started", None),
        ("topics delete", "ended", "failed"),
    ]
    failed = live.cluster.history(limit=1).rows[0]
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(failed["notes"])


@pytest.mark.slow
def test_an_event_has_figures_of_each_topic(live: LiveCluster) -> None:
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    row = live.cluster.history(operation="tier").rows[0]
    totals = json.loads(str(row["totals"]))
    assert totals["t/remote_end"] == 3
    assert totals["t/uploaded_bytes"] == totals["uploaded_bytes"] > 0
    assert live.cluster.tier().ok
    assert len(events(live.cluster, operation="tier")) == 1  # the second run had no work


@pytest.mark.slow
def test_a_round_of_maintain_is_one_event_and_an_idle_one_is_none(live: LiveCluster) -> None:
    live.tiered()
    live.fill("abc")
    for _ in range(6):
        live.cluster.maintain().raise_for_failures()
        live.clock.advance_ms(1_000_000)
    found = live.cluster.history(operation="maintain").rows
    assert 1 <= len(found) < 6
    totals = json.loads(str(found[-1]["totals"]))
    assert "t/uploaded_bytes" in totals
    assert 0 < totals["t/log_end"] <= 3, "the sweep tells of all partitions, also of those that no step worked on"
    for _ in range(3):
        live.cluster.maintain().raise_for_failures()
        live.clock.advance_ms(1_000_000)
    assert live.cluster.history(operation="maintain").rows == found


def test_an_empty_cluster_that_is_maintained_has_no_history(live: LiveCluster) -> None:
    for _ in range(3):
        live.cluster.maintain().raise_for_failures()
    assert live.cluster.image.topics == {}


def test_a_round_that_fails_like_the_one_before_is_reported_once(live: LiveCluster) -> None:
    live.topic(copies=1)
    live.append(["a"]).raise_for_failures()
    live.cluster.reassign({("t", 0): [3]}).raise_for_failures()
    with live.unreachable(3):
        for _ in range(3):
            assert not live.cluster.maintain(only="replicate", check=False).ok
    found = live.cluster.history(operation="maintain").rows
    assert [row["outcome"] for row in found] == ["failed"]


def test_it_is_filtered_by_time_operation_and_topic_and_limited(live: LiveCluster) -> None:
    live.topic("t")
    live.clock.advance_ms(3_600_000)
    live.topic("u")
    live.cluster.topics.alter_configs("t", {"retention.ms": "5"})
    cluster = live.cluster
    assert events(cluster, since="30m") == [
        ("topics create", "ended", "done"),
        ("topics alter_configs", "ended", "done"),
    ]
    assert [op for op, *_ in events(cluster, topic="t")] == ["topics create", "topics alter_configs"]
    assert len(events(cluster, operation="topics create")) == 2
    assert len(cluster.history(limit=1).rows) == 1
    with pytest.raises(InvalidCallError, match="limit is 0"):
        cluster.history(limit=0)
    with pytest.raises(InvalidCallError, match="since"):
        cluster.history(since="soon")


def test_a_long_history_is_read_from_its_end(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.engine.admin.history._STRETCH", 2)
    for number in range(5):
        live.topic(f"t{number}")
    named = [json.loads(str(row["arguments"]))["name"] for row in live.cluster.history().rows]
    assert named == ["t4", "t3", "t2", "t1", "t0"]


def test_an_operation_does_not_fail_for_its_event(live: LiveCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The brokers with the history are away during an unclean election."""
    live.topic(copies=1)
    image = live.cluster.image
    (leader,) = image.view(image.topic("t").topic_id, 0).replicas
    live.append(["a"]).raise_for_failures()
    others = [broker for broker in (2, 3) if broker != leader]
    live.cluster.brokers.fence(others, force=True)
    with live.unreachable(others[0]):
        report = live.cluster.elect(unclean=True)
    assert report.operation == "elect"
    assert report.ok


def test_a_history_that_cannot_be_written_is_a_note(live: LiveCluster, caplog: pytest.LogCaptureFixture) -> None:
    live.topic(copies=2)
    where = live.cluster.image.topic(OPERATIONS_TOPIC).topic_id
    for broker in (1, 2, 3):
        (folder,) = [one for one in live.root(broker).rglob("*") if one.is_dir() and where in one.name]
        folder.rename(folder.with_name("away"))
        folder.write_text("")
    report = live.cluster.topics.delete("t")
    assert report.ok
    lacking = [note.partition(":")[0] for note in report.notes if note.startswith("the history has no ")]
    assert lacking == [f"the history has no {phase!r} event of this operation" for phase in ("started", "ended")]
    assert caplog.text == ""
    created = live.cluster.topics.create("u")
    assert created.notes[0].startswith("the history has no 'ended' event of this operation: ")


def test_nobody_but_the_engine_writes_to_it_and_its_configs_may_be_altered(live: LiveCluster) -> None:
    live.topic()
    with pytest.raises(InvalidTopicError):
        live.append(["a"], OPERATIONS_TOPIC)
    with pytest.raises(InvalidTopicError):
        live.cluster.topics.delete(OPERATIONS_TOPIC)
    live.cluster.topics.alter_configs(OPERATIONS_TOPIC, {"retention.ms": "1000"})
    assert live.cluster.image.topic(OPERATIONS_TOPIC).configs["retention.ms"] == "1000"


def test_an_event_costs_as_much_as_an_append(live: LiveCluster) -> None:
    live.topic()
    rows = {0: [batch(["a"], 1)]}
    live.append(["a"])  # the driver then knows both logs
    live.cluster.topics.alter_configs("t", {"retention.ms": "1"})
    with live.cluster.measured() as append:
        live.cluster.append_batches("t", rows).raise_for_failures()
    with live.cluster.measured() as changed:
        live.cluster.topics.alter_configs("t", {"retention.ms": "2"})
    ports_of(live.cluster).events = None
    with live.cluster.measured() as silent:
        live.cluster.topics.alter_configs("t", {"retention.ms": "3"})
    assert changed.counts.requests - silent.counts.requests <= append.counts.requests


@pytest.mark.slow
def test_a_restore_is_reported_on_the_cluster_that_it_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATALOG_HISTORY", "on")
    heir = Heir(partly_tiered(tmp_path))
    for _ in range(2):  # harmless when repeated
        report = heir.restore()
        assert report.ok
        (note,) = [note for note in report.notes if note.startswith(OPERATIONS_TOPIC)]
        assert "remains in" in note
    found = events(heir.open())
    assert found == 2 * [("restore", "started", None), ("restore", "ended", "done")]


def test_the_scheduler_is_known_by_its_environment() -> None:
    airflow = {"AIRFLOW_CTX_DAG_ID": "d", "AIRFLOW_CTX_TASK_ID": "t", "AIRFLOW_CTX_DAG_RUN_ID": "r"}
    assert (origin(airflow).job, origin(airflow).run) == ("d.t", "r")
    assert origin({}).job is None
    assert origin({}).run.isdecimal()
    assert operations_log({"STRATALOG_HISTORY": "off"}) is None
    with pytest.raises(InvalidCallError, match="STRATALOG_HISTORY is 'maybe'"):
        operations_log({"STRATALOG_HISTORY": "maybe"})


def test_the_log_has_a_line_as_an_operation_begins_and_one_as_it_ends(
    live: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    live.topic()
    with caplog.at_level(logging.INFO, "stratalog"):
        live.cluster.replicate("t")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == 'replicate: begins: {"topics": "t"}'
    assert lines[-1].startswith("replicate: ends: replicate: done, partitions 1")


def test_long_work_shows_the_log_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    heartbeat = Heartbeat(Silent(), clock)
    with caplog.at_level(logging.INFO, "stratalog"):
        heartbeat.start("tier", 100, "partitions")
        for _ in range(70):
            clock.sleep(1)
            heartbeat.advance(10)
        heartbeat.finish()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["tier: 30 of 100 partitions, 300 bytes, 30 s", "tier: 60 of 100 partitions, 600 bytes, 60 s"]


@pytest.mark.slow
def test_the_history_of_the_delta_table_tells_when_an_offset_arrived(live: LiveCluster) -> None:
    live.tiered(partitions=2)
    for numbers in ("ab", "c"):
        live.fill(numbers)
        live.append({1: ["x"]}).raise_for_failures()
        live.cluster.tier().raise_for_failures()
    live.cluster.topics.delete_records("t", {0: 2})
    live.cluster.retain().raise_for_failures()
    table = ports_of(live.cluster).storage.remote_table(live.cluster.image.topic("t"))
    removed, second, first, *_ = DeltaTable(table.uri).history()
    assert first["userMetadata"] == "tier; adds t-0 [0, 2), t-1 [0, 1)"
    assert (first["stratalog.topic"], first["stratalog.operation"]) == ("t", "tier")
    assert json.loads(second["stratalog.offsets"]) == {"0": [[2, 3]], "1": [[1, 2]]}
    assert removed["userMetadata"] == "retain; removes t-0 [0, 2)"
    assert json.loads(removed["stratalog.removedOffsets"]) == {"0": [[0, 2]]}


def test_a_report_object_says_of_when_what_and_whom_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATALOG_RUN", "42")
    file = small_cluster(tmp_path)
    assert main(["describe", "--cluster", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["cluster"], found["version"], found["job"], found["run"]) == ("c", VERSION, None, "42")
    assert datetime.fromisoformat(found["time"]).tzinfo is not None
    assert main(["describe", "--cluster", f"{file}.not", "--json"]) == 2
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["cluster"] is None


def small_cluster(folder: Path) -> str:
    """The file of a cluster of one broker, with topic ``t``."""
    for name in ("b1", "remote"):
        (folder / name).mkdir()
    file = folder / "cluster.toml"
    file.write_text('[cluster]\nid = "c"\nremote = "remote"\nvoters = [1]\n[[brokers]]\nid = 1\nlog_dir = "b1"\n')
    Cluster.format(file).topics.create("t", partitions=1, replication_factor=1)
    return str(file)


def test_the_job_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATALOG_HISTORY", "on")
    file = small_cluster(tmp_path)
    assert main(["history", "--cluster", file]) == 0
    table = capsys.readouterr().out
    assert "topics create" in table
    assert main(["history", "--cluster", file, "--json", "--since", "1h"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert (row["operation"], json.loads(row["arguments"])["name"]) == ("topics create", "t")


@pytest.mark.slow
def test_new_events_continue_after_retention_has_passed_them(live: LiveCluster) -> None:
    live.topic()
    live.cluster.topics.delete("t")
    new = live.cluster.new_events()
    live.topic()
    live.cluster.topics.delete("t")
    live.clock.advance_ms(100 * 24 * 3_600_000)
    live.driver().retain().raise_for_failures()
    live.topic("u")
    live.cluster.topics.delete("u")
    arguments = [event.arguments for event in new() if event.operation == "topics delete"]
    assert arguments != []
    assert all('"u"' in text for text in arguments)
    assert new() == []

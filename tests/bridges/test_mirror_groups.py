"""A group of the source that cannot be read is named in the report, and hides neither records nor other groups."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stratalog.bridges.mirror.mirror import end_mirror, mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, partition_for
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    RetriableError,
    StorageAuthorizationError,
    StratalogError,
)
from tests.bridges.memory_source import MemorySource
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster

kafka = pytest.importorskip("confluent_kafka")


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


def kafka_error(code: int) -> Exception:
    error: Exception = kafka.KafkaException(kafka.KafkaError(code))
    return error


class Admin:
    """Groups ``a``, ``z`` with an offset, and another one between them whose answer is given."""

    def __init__(self, group: str, given: Any, listing: tuple[Exception, ...] = ()) -> None:
        self.group, self.given, self.listing = group, given, list(listing)

    def list_consumer_groups(self, **_: Any) -> Future[Any]:
        groups = [SimpleNamespace(group_id=name) for name in ("z", self.group, "a")]
        return done(SimpleNamespace(valid=groups, errors=self.listing))

    def list_consumer_group_offsets(self, asked: list[Any], **_: Any) -> dict[str, Future[Any]]:
        name = asked[0].group_id
        place = SimpleNamespace(topic="t", partition=0, offset=1, metadata=None, error=None)
        return {name: done(self.given if name == self.group else SimpleNamespace(topic_partitions=[place]))}


def unreadable(code: int) -> Any:
    error = kafka.KafkaError(code)
    one = SimpleNamespace(topic="t", partition=0, offset=-1001, metadata=None, error=error)
    other = SimpleNamespace(topic="other", partition=0, offset=-1001, metadata=None, error=error)
    return SimpleNamespace(topic_partitions=[one, other])


CODES = kafka.KafkaError


@pytest.mark.parametrize(
    ("group", "given", "kind"),
    [
        ("", None, InvalidCallError),
        ("g", kafka_error(CODES.GROUP_AUTHORIZATION_FAILED), StorageAuthorizationError),
        ("g", kafka_error(CODES.GROUP_ID_NOT_FOUND), RetriableError),
        ("g", kafka_error(CODES._TIMED_OUT), RetriableError),
        ("g", kafka_error(CODES.COORDINATOR_NOT_AVAILABLE), RetriableError),
        ("g", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"), CorruptionError),
        ("g", unreadable(CODES.TOPIC_AUTHORIZATION_FAILED), StorageAuthorizationError),
        ("g", unreadable(CODES.UNSTABLE_OFFSET_COMMIT), RetriableError),
    ],
)
def test_an_unreadable_group_is_named_next_to_the_others(
    group: str, given: Any, kind: type[StratalogError]
) -> None:
    from stratalog.bridges.mirror.kafka_source import KafkaSource

    source = KafkaSource("127.0.0.1:1", {})
    source._admin = Admin(group, given)  # type: ignore[assignment]
    there = source.group_offsets(["t"])
    assert sorted(there.offsets) == ["a", "z"]
    ((item, error),) = there.failures
    assert item == f"group {group!r}"
    assert isinstance(error, kind)


def test_a_broker_that_lists_no_groups_is_named() -> None:
    from stratalog.bridges.mirror.kafka_source import KafkaSource

    source = KafkaSource("127.0.0.1:1", {})
    denied = kafka_error(CODES.CLUSTER_AUTHORIZATION_FAILED)
    source._admin = Admin("g", unreadable(CODES.GROUP_AUTHORIZATION_FAILED), (denied,))  # type: ignore[assignment]
    assert [item for item, _ in source.group_offsets(["t"]).failures] == ["consumer groups", "group 'g'"]


@pytest.mark.parametrize(
    ("failed", "items", "moved"),
    [
        ([("group ''", InvalidCallError("no id"))], ["group ''"], 1),
        ([("group 'h'", StorageAuthorizationError("denied"))], ["group 'h'"], 1),
        (InvalidCallError("not listed"), ["consumer groups"], 0),
        (StorageAuthorizationError("denied"), ["consumer groups"], 0),
        (CorruptionError("no text"), ["consumer groups"], 0),
    ],
)
def test_records_come_whatever_becomes_of_groups(
    failed: Any, items: list[str], moved: int, tmp_path: Path
) -> None:
    live, source = LiveCluster(tmp_path), MemorySource(1)
    source.logs[0].append("a", "b")
    source.groups = {"g": {("t", 0): OffsetAndMetadata(1)}}
    source.groups_failed = failed
    report = with_ports(mirror, ports_of(live.cluster))(source, ["t"], MirrorOptions(replication_factor=3))
    assert [failure.item for failure in report.failures] == items
    assert (report.totals["records"], report.totals["group_offsets"]) == (2, moved)


def test_a_topic_whose_mirror_was_ended_says_what_to_do(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), MemorySource(1)
    source.logs[0].append("a")
    options = MirrorOptions(replication_factor=3)
    with_ports(mirror, ports_of(live.cluster))(source, ["t"], options).raise_for_failures()
    with_ports(end_mirror, ports_of(live.cluster))(["t"])
    (failure,) = with_ports(mirror, ports_of(live.cluster))(source, ["t"], options).failures
    assert "its mirror was ended" in str(failure)
    assert "delete it here" in str(failure)


def test_a_dry_run_fences_no_broker(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path, on_disk=True, voters=(1, 2, 3)), MemorySource(1)
    source.logs[0].append("a")
    run = with_ports(mirror, ports_of(live.cluster))
    run(source, ["t"], MirrorOptions(replication_factor=3)).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 0): 0})
    source.groups = {"g": {("t", 0): OffsetAndMetadata(1)}}
    partition = partition_for("g", len(live.cluster.image.topic(OFFSETS_TOPIC).partitions))
    away = live.leader(OFFSETS_TOPIC, partition)
    with live.unreachable(away):
        report = run(source, ["t"], MirrorOptions(groups=True, dry_run=True))
        assert not live.cluster.image.brokers[away].fenced
    assert any(f"a run begins with: broker {away}" in note for note in report.notes), report.notes

"""A failed operation raises with its report, unless ``check=False``. Looks never raise for their findings. One
table of all operations and one of all looks are compared with the public methods themselves.
"""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from stratalog import Cluster, Failure, OperationFailedError, Report, StratalogError
from stratalog.engine.cluster.brokers import Brokers
from stratalog.engine.cluster.catalog import Catalog
from stratalog.engine.cluster.groups import Groups
from stratalog.engine.cluster.quorum import Quorum
from stratalog.engine.cluster.topics import Topics
from stratalog.engine.cluster.transactions import OpenTransaction, Transactions
from stratalog.partitions.runner import THREADS
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch

DOOR = {
    "": Cluster,
    "topics.": Topics,
    "brokers.": Brokers,
    "groups.": Groups,
    "quorum.": Quorum,
    "transactions.": Transactions,
    "catalog.": Catalog,
}
FAILED = Report(
    "op",
    [{"partition": 0, "outcome": "done"}],
    [Failure("t-1", "NOT_ENOUGH_REPLICAS", "1 of 2"), Failure("t-2", "KAFKA_STORAGE_ERROR", "it is full")],
)
FOUND = Report("look", [], [Failure("t-1", "CORRUPT_MESSAGE", "a bit has flipped")])

Call = Callable[..., Any]
JOBS = "stratalog.engine.cluster.jobs."
LOOKS = "stratalog.engine.cluster.looks."
MIRRORS = "stratalog.bridges.kafka."
ERASING = "stratalog.engine.cluster.erasing."
BATCHES: dict[int, list[pa.RecordBatch]] = {0: []}

OPERATIONS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "append": ("stratalog.engine.spark.append_frame.append_frame", ("t", None), {}),
    "append_batches": ("stratalog.engine.cluster.producer.append_batches", ("t", BATCHES), {}),
    "produce": ("stratalog.engine.records.produce.produce", ("t", []), {}),
    "maintain": (JOBS + "maintaining.maintain", (), {}),
    "erase": (ERASING + "erasing.erase", ("t", [b"k"]), {}),
    "elect": (JOBS + "elect", (), {}),
    "reassign": (JOBS + "reassigning.reassign", ({},), {}),
    "cancel_reassignments": (JOBS + "reassigning.cancel", (), {}),
    "replicate": (JOBS + "replicating.replicate", (), {}),
    "merge": (JOBS + "merging.merge", (), {}),
    "compact": (JOBS + "compacting.compact", (), {}),
    "bootstrap": (JOBS + "bootstrapping.bootstrap", (1,), {}),
    "heal": (JOBS + "healing.heal", (), {}),
    "recover": (JOBS + "recovering.recover", ("t", "there"), {}),
    "tier": (JOBS + "tier.tier", (), {}),
    "retain": (JOBS + "retain.retain", (), {}),
    "vacuum": (JOBS + "vacuuming.vacuum", (), {}),
    "snapshot": (JOBS + "snapshotting.snapshot", (), {}),
    "mirror": (MIRRORS + "mirroring.mirror", ("kafka:9092", "t"), {}),
    "end_mirror": (MIRRORS + "mirroring.end_mirror", ("t",), {}),
    "export": (MIRRORS + "exporting.export", ("kafka:9092", "t"), {}),
    "sign": ("stratalog.engine.cluster.sign_metadata", ("cluster.toml",), {}),
    "restore": ("stratalog.engine.cluster.restoring.restore", ("cluster.toml", "former"), {"runner": THREADS}),
    "topics.create": ("stratalog.engine.cluster.topics.topics.create_topic", ("t",), {}),
    "topics.create_partitions": ("stratalog.engine.cluster.topics.topics.create_partitions", ("t", 2), {}),
    "topics.alter": ("stratalog.engine.cluster.topics.topics.alter_topic", ("t",), {}),
    "topics.alter_configs": ("stratalog.engine.cluster.topics.topics.alter_configs", ("t", {}), {}),
    "topics.protect": ("stratalog.engine.cluster.topics.topics.protect", ("t",), {}),
    "topics.delete": ("stratalog.engine.cluster.topics.topics.delete_topic", ("t",), {}),
    "topics.delete_records": ("stratalog.engine.cluster.topics.delete_records", ("t", {0: 1}), {}),
    "brokers.add": ("stratalog.engine.cluster.brokers.bring_up.add_brokers", (1,), {}),
    "brokers.register": ("stratalog.engine.cluster.brokers.bring_up.register_brokers", (1,), {}),
    "brokers.fence": ("stratalog.engine.cluster.brokers.fence.fence", (1,), {}),
    "brokers.unfence": ("stratalog.engine.cluster.brokers.fence.unfence", (1,), {}),
    "brokers.decommission": ("stratalog.engine.cluster.brokers.fence.decommission", (1,), {}),
    "groups.commit": ("stratalog.engine.cluster.groups.groups.commit", ("g", {}), {}),
    "groups.reset_offsets": ("stratalog.engine.cluster.groups.admin.reset_offsets", ("g",), {}),
    "groups.delete": ("stratalog.engine.cluster.groups.admin.delete_group", ("g",), {}),
    "groups.delete_offsets": ("stratalog.engine.cluster.groups.admin.delete_offsets", ("g", "t"), {}),
    "quorum.snapshot": ("stratalog.engine.cluster.quorum.quorum.snapshot_metadata", (), {}),
    "quorum.add_voter": ("stratalog.engine.cluster.quorum.quorum.add_voter", (1,), {}),
    "quorum.remove_voter": ("stratalog.engine.cluster.quorum.quorum.remove_voter", (1,), {}),
    "quorum.replace_voter": ("stratalog.engine.cluster.quorum.quorum.replace_voter", (1,), {}),
    "transactions.abort": ("stratalog.engine.cluster.transactions.admin.abort_transaction", ("x",), {}),
    "transactions.finish": ("stratalog.engine.cluster.transactions.admin.finish_transactions", (), {}),
}
"""Operations by their public name: the working function, and the arguments."""

LOOKS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "verify": (JOBS + "verify.verify", ()),
    "verify_erased": (ERASING + "verify_erased", ("certificate.json",)),
    "describe": (LOOKS + "describe", ()),
    "health": (LOOKS + "health", ()),
    "drill": (JOBS + "drilling.drill", ()),
    "reassignments": (LOOKS + "reassignments", ()),
    "discarded": (LOOKS + "histories.history", ()),
    "history": (JOBS + "history", ()),
    "snapshots": (LOOKS + "list_snapshots", ()),
    "metrics": (LOOKS + "metrics", ()),
    "compare": (MIRRORS + "comparing.compare", ("kafka:9092", "t")),
    "topics.list": ("stratalog.engine.cluster.topics.describe_cluster.describe_topics", ()),
    "topics.describe": ("stratalog.engine.cluster.topics.describe_cluster.describe_topic", ("t",)),
    "topics.troubled": ("stratalog.engine.cluster.topics.describe_cluster.troubled_partitions", ()),
    "brokers.list": ("stratalog.engine.cluster.brokers.describe_cluster.describe_brokers", ()),
    "groups.list": ("stratalog.engine.cluster.groups.admin.groups", ()),
    "groups.lag": ("stratalog.engine.cluster.groups.groups.lag", ("g",)),
    "groups.lag_metrics": ("stratalog.engine.cluster.groups.lag_metrics", ()),
    "quorum.describe": ("stratalog.engine.cluster.quorum.quorum.describe_quorum", ()),
    "transactions.list": ("stratalog.engine.cluster.transactions.admin.list_transactions", ()),
    "transactions.describe": ("stratalog.engine.cluster.transactions.admin.describe_transaction", ("x",)),
    "transactions.find_hanging": ("stratalog.engine.cluster.transactions.admin.hanging_transactions", ()),
}
"""The looks; ``Cluster.plan_format`` works without a cluster."""

NO_REPORTS: dict[str, set[str]] = {
    "opens a cluster, or ends its use": {"open", "format", "using", "close", "transactions.begin"},
    "begins what runs on": {"serve", "serve_page", "stream_writer", "for_each_batch", "for_each_live_batch"},
    "answers with records": {"read", "read_live", "read_snapshot", "records", "tail", "fetch", "fetch_many"},
    "answers with what is known": {
        *("offsets", "offset_for_leader_epoch", "groups.committed", "groups.lag_frame", "catalog.delta_table"),
        *("plan_read", "plan_replicas", "policy", "report", "client", "new_events"),
    },
    "names something in Spark, as Spark's own methods do": {
        *("create_view", "create_views", "create_range_function"),
        *("catalog.create_system_views", "catalog.create_table", "catalog.create_view"),
    },
    "frames a block": {"measured", "read_errors"},
}
"""Methods that return no report: they change nothing in the cluster, or are not over when they return."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return LiveCluster(tmp_path_factory.mktemp("loud")).cluster


def method(cluster: Cluster, name: str) -> Call:
    found: Any = cluster
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def answering(monkeypatch: pytest.MonkeyPatch, target: str, report: Report) -> None:
    """Let the working function return this report; no Kafka and no cluster file is used."""
    monkeypatch.setattr(target, lambda *_, **__: report)
    monkeypatch.setattr(ERASING + "read_certificate", lambda _: None)
    nothing = SimpleNamespace(close=lambda: None)
    for name in ("open_source", "open_target"):
        monkeypatch.setattr(MIRRORS + name, lambda *_: nothing)


def public(group: type) -> list[str]:
    """The names of the methods of a class, without bridges that are not installed."""
    found = inspect.getmembers(group, inspect.isroutine)
    return [name for name, function in found if not name.startswith("_") and function.__name__ != "absent"]


def at_the_door() -> Iterator[tuple[str, inspect.Signature]]:
    """Every public method that returns a report."""
    for prefix, group in DOOR.items():
        for name, function in inspect.getmembers(group, callable):
            if name.startswith("_") or inspect.isclass(function):
                continue
            signature = inspect.signature(function)
            if signature.return_annotation in ("Report", "HealthReport", "ErasureReport"):
                yield prefix + name, signature


def test_every_method_that_answers_with_a_report_is_an_operation_or_a_look() -> None:
    has_check = {name: "check" in signature.parameters for name, signature in at_the_door()}
    assert {name for name, has in has_check.items() if has} == set(OPERATIONS)
    assert {name for name, has in has_check.items() if not has} == {*LOOKS, "plan_format"}


def test_whatever_changes_the_cluster_answers_with_a_report() -> None:
    """A new method has ``check`` and a report, or a place in the table."""
    every = {prefix + name for prefix, group in DOOR.items() for name in public(group)}
    reports = {name for name, _ in at_the_door()}
    assert every - reports == set().union(*NO_REPORTS.values())
    for name in public(OpenTransaction):  # this class raises by itself, because a failed part ends the transaction
        function = inspect.getattr_static(OpenTransaction, name)
        answer = inspect.signature(function).return_annotation if inspect.isfunction(function) else "Report"
        assert answer == "Report", name


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_fails_raises_with_its_report(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, given, more = OPERATIONS[name]
    answering(monkeypatch, target, FAILED)
    if name in ("sign", "restore"):
        monkeypatch.setenv("STRATALOG_CLUSTER_KEY", "ab" * 32)
        monkeypatch.setattr("stratalog.engine.cluster.load_cluster_file", lambda *_: cluster.file)
        monkeypatch.setattr("stratalog.engine.cluster.open_ports", lambda *_, **__: cluster._ports)
    call = method(cluster, name)
    with pytest.raises(OperationFailedError) as caught:
        call(*given, **more)
    assert caught.value.report.failures == FAILED.failures
    assert caught.value.report.rows == FAILED.rows
    answer = call(*given, **more, check=False)
    assert answer.failures == FAILED.failures
    assert not answer.ok
    assert not answer


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_is_done_answers_with_a_report_that_is_true(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, given, more = OPERATIONS[name]
    answering(monkeypatch, target, Report("op", []))
    if name in ("sign", "restore"):
        monkeypatch.setenv("STRATALOG_CLUSTER_KEY", "ab" * 32)
        monkeypatch.setattr("stratalog.engine.cluster.load_cluster_file", lambda *_: cluster.file)
        monkeypatch.setattr("stratalog.engine.cluster.open_ports", lambda *_, **__: cluster._ports)
    answer = method(cluster, name)(*given, **more)
    assert answer.ok
    assert answer


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_answers_with_what_it_found(cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, given = LOOKS[name]
    answering(monkeypatch, target, FOUND)
    answer = method(cluster, name)(*given)
    assert answer.failures == FOUND.failures
    assert not answer
    with pytest.raises(OperationFailedError):
        answer.raise_for_failures()


def test_the_message_names_the_first_failures_and_what_to_do() -> None:
    many = [Failure(f"t-{number}", "KAFKA_STORAGE_ERROR", "it is full") for number in range(9)]
    with pytest.raises(OperationFailedError) as caught:
        Report("tier", [], many).raise_for_failures()
    assert str(caught.value) == (
        "tier: t-0: KAFKA_STORAGE_ERROR: it is full; t-1: KAFKA_STORAGE_ERROR: it is full; "
        "t-2: KAFKA_STORAGE_ERROR: it is full (and 6 more); "
        "finished work is kept: fix the cause, and run the operation again"
    )


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_the_error_keeps_its_report_where_it_is_pickled(again: Call) -> None:
    """Executors and pools send errors back."""
    with pytest.raises(StratalogError) as caught:
        FAILED.raise_for_failures()
    got = again(caught.value)
    assert type(got) is OperationFailedError
    assert (str(got), got.report) == (str(caught.value), FAILED)


# ----------------------------------------------------------------------------- appends, as they fail


def one(value: str) -> list[pa.RecordBatch]:
    return [batch([value], timestamp_us=5)]


def test_an_append_that_is_in_part_acknowledged_raises_and_says_so(tmp_path: Path) -> None:
    """A partition that has the sequence with other records refuses them, and the partitions that lack it are not
    tried.
    """
    live = LiveCluster(tmp_path)
    live.topic(partitions=3)
    live.driver().append_batches("t", {0: one("a")}, producer="p", sequence=7)
    changed = {0: one("A"), 1: one("b"), 2: one("c")}
    with pytest.raises(OperationFailedError, match="OUT_OF_ORDER_SEQUENCE_NUMBER") as caught:
        live.driver().append_batches("t", changed, producer="p", sequence=7)
    report = caught.value.report
    assert {row["partition"]: row["outcome"] for row in report.rows} == {
        0: "not appended",
        1: "not tried",
        2: "not tried",
    }
    assert "not tried: partitions 1, 2 of t, because partition 0 was refused" in report.notes
    assert live.read() == {0: ["a"]}

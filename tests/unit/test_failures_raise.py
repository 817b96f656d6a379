"""What fails at the door raises, with its report; what only looks returns what it saw."""

from __future__ import annotations

import inspect
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster, Failure, OperationFailedError, Report
from stratalog.engine.cluster.brokers import Brokers
from stratalog.engine.cluster.catalog import Catalog
from stratalog.engine.cluster.groups import Groups
from stratalog.engine.cluster.quorum import Quorum
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.cluster.topics import Topics
from stratalog.engine.cluster.transactions import Transactions
from tests.contexts import context_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch

FAILED = Failure("t-0", "KAFKA_STORAGE_ERROR", "no space left")
REPORT = Report("act", [{"topic": "t", "partition": 0}], [FAILED], notes=["a note"])
LOOKS = {
    *("Cluster.compare", "Cluster.describe", "Cluster.discarded", "Cluster.drill", "Cluster.history"),
    *("Cluster.metrics", "Cluster.reassignments", "Cluster.snapshots", "Cluster.verify"),
    *("Brokers.list", "Groups.lag", "Groups.lag_metrics", "Groups.list", "Quorum.describe", "Topics.describe"),
    *("Topics.list", "Topics.troubled", "Transactions.describe", "Transactions.hanging", "Transactions.list"),
}
"""Methods of the door that return a report, and change nothing."""


def methods() -> Iterator[tuple[str, inspect.Signature]]:
    """The public methods of the door that return a report."""
    for kind in (Cluster, Brokers, Catalog, Groups, Quorum, Topics, Transactions):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            signature = inspect.signature(method)
            if not name.startswith("_") and signature.return_annotation in ("Report", Report):
                yield f"{kind.__name__}.{name}", signature


def test_every_operation_has_a_check_and_no_look_has_one() -> None:
    assert {name for name, signature in methods() if "check" not in signature.parameters} == LOOKS
    for name, signature in methods():
        if name not in LOOKS:
            check = signature.parameters["check"]
            assert (check.default, check.kind) == (True, inspect.Parameter.KEYWORD_ONLY), name


class Door:
    """With an operation that fails in part."""

    def __init__(self, cluster: Cluster) -> None:
        self._context = context_of(cluster)

    @operation("act", leaves_event=False)
    def act(self, *, check: bool = True) -> Report:
        return REPORT

    @operation("look", leaves_event=False)
    def look(self) -> Report:
        return REPORT


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path, on_disk=True)
    made.topic(partitions=2)
    return made


def test_a_failure_raises_with_the_report_in_it(live: LiveCluster) -> None:
    door = Door(live.cluster)
    with pytest.raises(OperationFailedError, match="act: t-0: KAFKA_STORAGE_ERROR: no space left") as raised:
        door.act()
    assert raised.value.report is REPORT
    assert door.act(check=False) is REPORT
    assert door.look() is REPORT


def test_a_report_is_true_if_all_was_done() -> None:
    assert not REPORT
    assert Report("act", [])


def test_the_error_travels_between_processes() -> None:
    with pytest.raises(OperationFailedError) as raised:
        REPORT.raise_for_failures()
    travelled: Any = pickle.loads(pickle.dumps(raised.value))
    assert str(travelled) == str(raised.value)
    assert travelled.report == REPORT


def test_an_append_of_which_one_partition_failed_has_the_outcome_of_both(live: LiveCluster) -> None:
    live.topic("u", partitions=2, copies=1)
    leaders = {p: live.cluster.image.view(live.cluster.image.topic("u").topic_id, p).leader for p in (0, 1)}
    assert leaders[0] != leaders[1]
    live.cluster.append_batches("u", {1: [batch("a")]})
    leader = live.replicas("u", 1).leader
    folder = live.folder / f"b{leaders[1]}" / leader.folder
    shutil.rmtree(folder)
    folder.write_text("in the way")
    with pytest.raises(OperationFailedError) as raised:
        live.cluster.append_batches("u", {0: [batch("a")], 1: [batch("b")]})
    assert [row["outcome"] for row in raised.value.report.rows] == ["acknowledged", "not appended"]

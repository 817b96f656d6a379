"""Another driver deletes a topic during an operation: the error names the deletion, not damage or a new leader."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.driver.report import Failure, OperationFailedError, Report
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.paths import EpochName
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, the_failure
from tests.unit.faulty_store import Faults


class Deleted:
    """One broker, a driver that keeps logs short, and another driver that deletes the topic."""

    def __init__(self, folder: Path) -> None:
        self.faults = Faults()
        self.live = LiveCluster(folder, 1, through=self.faults.wrap)
        self.live.topic(copies=1, segment_merge_min_files="2")
        self.driver = self.live.driver(keeps_short=True)
        self.other: Cluster = self.live.driver()

    def before(self, call: str, suffix: str) -> None:
        """Delete the topic before the next such call for a file or folder of it."""

        self.faults.once(lambda: self.other.topics.delete("t").raise_for_failures(), call, of="/t-", ending=suffix)


@pytest.mark.parametrize("acks", ["all", "leader"])
@pytest.mark.parametrize("appends", [0, 2])
@pytest.mark.parametrize("call", ["stage", "commit"])
def test_the_append_says_that_its_topic_was_deleted(tmp_path: Path, call: str, appends: int, acks: str) -> None:
    """The folder then has the file of the append, but not the register of its epoch."""
    topic = Deleted(tmp_path)
    for _ in range(appends):
        topic.live.append(["a"], driver=topic.driver).raise_for_failures()
    topic.before(call, ".parquet")
    failure = the_failure(topic.live.append(["b"], driver=topic.driver, acks=acks))
    assert failure == "t-0: UNKNOWN_TOPIC_OR_PARTITION: topic 't' was deleted before the append was acknowledged"


@pytest.mark.parametrize(("call", "suffix"), [("list", ""), ("create", ".epoch")])
def test_the_append_does_not_say_that_the_leader_changed(tmp_path: Path, call: str, suffix: str) -> None:
    """The append takes over in the empty folder, and only the metadata shows that the topic is gone."""
    topic = Deleted(tmp_path)
    topic.before(call, suffix)
    failure = the_failure(topic.live.append(["a"], driver=topic.driver))
    assert failure == "t-0: UNKNOWN_TOPIC_OR_PARTITION: topic 't' was deleted before the append was acknowledged"


def test_a_log_that_is_half_deleted_is_not_called_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder has the high watermark of the last append, but not the register of its epoch. Later damage is
    still reported."""
    topic = Deleted(tmp_path)
    live, ports = topic.live, ports_of(topic.driver)

    def append_and_shorten() -> None:
        image = ports.metadata.image()
        view = image.view(image.topic("t").topic_id, 0)
        live.append(["a"], driver=topic.driver).raise_for_failures()
        end = ports.memory.log_ends.of([view])[0]
        ports.memory.behind_appends.appended(image, [(view, replace(end, names=1_000))])
        ports.memory.behind_appends.wait()

    with caplog.at_level(logging.WARNING, "stratalog.engine.upkeep"):
        live.append(["a"], driver=topic.driver).raise_for_failures()
        topic.before("create", ".hw")
        append_and_shorten()
        assert "t" not in live.cluster.image.topic_ids
        assert not caplog.records
        live.topic(copies=1)
        live.append(["a"], driver=topic.driver).raise_for_failures()
        replica = live.replica(1)
        replica.store.delete([replica.path(EpochName(1))])
        append_and_shorten()
    assert "holds files of epoch 1, but has joined only 0" in caplog.text


class LateAppend(Deleted):
    """The deletion leaves a file of an append that began before it, and not the register of its epoch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for _ in range(3):
            self.live.append(["a"]).raise_for_failures()
        self.late = self.live.replica(1)
        last = self.live.log(1).chain[-1].file.object.name
        self.last, self.data = last, self.late.store.read(last)

    def delete_and_leave(self, act: Callable[[Cluster], object]) -> StratalogError | Failure:
        """Delete the topic before the driver's first look at its folder, leave the late file, and return the
        error."""

        def delete() -> None:
            self.other.topics.delete("t").raise_for_failures()
            self.late.store.create(self.last, self.data)

        self.driver.image  # the driver reads the metadata  # noqa: B018
        self.faults.once(delete, of="t-")
        try:
            report = act(self.driver)
        except OperationFailedError as error:
            return error.report.failures[0]
        except StratalogError as error:
            return error
        assert isinstance(report, Report)
        return report.failures[0]


@pytest.mark.parametrize(
    "act",
    [
        lambda driver: driver.fetch("t", 0, 0),
        lambda driver: driver.plan_read("t"),
        lambda driver: driver.offsets("t"),
        lambda driver: driver.merge("t"),
        lambda driver: driver.retain("t"),
        lambda driver: driver.topics.delete_records("t", {0: 1}),
    ],
    ids=["fetch", "plan_read", "offsets", "merge", "retain", "delete_records"],
)
def test_remains_of_a_deleted_topic_are_not_damage(tmp_path: Path, act: Callable[[Cluster], object]) -> None:
    """Each operation has read the metadata before the deletion, and looks at the folder after it."""
    found = LateAppend(tmp_path).delete_and_leave(act)
    assert found.code == "UNKNOWN_TOPIC_OR_PARTITION"

"""The owner of a table, and its change, on a folder and on S3."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import InconsistentClusterIdError, OutcomeUnknownError, StorageAuthorizationError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.removal import Rule
from stratalog.partitions.store import Store, StoreOptions, open_store
from stratalog.tiering import delta_table
from stratalog.tiering.delta_table import DeltaTopicTable, hand_over
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.removal import adopted_rules, last_rule
from tests.s3_server import S3Endpoint
from tests.unit.harness import SCHEMA
from tests.unit.tiering_harness import OURS, segment, table_in, uploaded

CLOCK = ManualClock()
LATER = Histories({0: Lineage([(1, 0), (1001, 10)])}, lambda: {0: Present(1001)})


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, StoreOptions]:
    if request.param == "folder":
        return open_store(f"file://{tmp_path}", StoreOptions()), StoreOptions()
    s3: S3Endpoint = request.getfixturevalue("s3_endpoint")
    options = StoreOptions(endpoint_url=s3.url, region=s3.region)
    return open_store(f"s3://{s3.bucket}/{tmp_path.name}", options), options


def test_the_heir_sees_what_was_committed_and_the_former_owner_commits_no_more(
    place: tuple[Store, StoreOptions],
) -> None:
    remote, options = place
    mine = table_in(remote, options=options)
    mine.ensure(SCHEMA)
    mine.commit([uploaded(segment(0, 10))], histories=OURS)
    assert hand_over(mine, "c", "heir", options, CLOCK)
    with pytest.raises(InconsistentClusterIdError, match="belongs to cluster 'heir', not to 'c'"):
        mine.commit([uploaded(segment(10, 20))], histories=OURS)
    heirs = table_in(remote, cluster_id="heir", options=options)
    assert heirs.load().end(0) == 10
    assert heirs.commit([uploaded(segment(10, 20, epoch=1001))], histories=LATER).log.end(0) == 20


def test_handing_over_again_changes_nothing(place: tuple[Store, StoreOptions]) -> None:
    remote, options = place
    mine = table_in(remote, options=options)
    assert not hand_over(mine, "c", "heir", options, CLOCK)
    mine.ensure(SCHEMA)
    hand_over(mine, "c", "heir", options, CLOCK)
    version = table_in(remote, cluster_id="heir", options=options).load().version
    assert hand_over(mine, "c", "heir", options, CLOCK)
    assert table_in(remote, cluster_id="heir", options=options).load().version == version


def test_the_heirs_rules_end_with_the_remote_log(place: tuple[Store, StoreOptions]) -> None:
    """The former cluster may record a rule before it uploads the first segment."""
    remote, options = place
    mine = table_in(remote, options=options)
    mine.ensure(SCHEMA)
    mine.record_beginning({0: [Erasure(2, ())]}, {0: Rule(1, 25, 8)})
    mine.commit([uploaded(replace(segment(0, 4), name=DataName(0, 4, 1, 1)))], histories=OURS)
    assert mine.commit([uploaded(segment(4, 8))], histories=OURS).stale, "it does not follow the rule"
    hand_over(mine, "c", "heir", options, CLOCK)
    heirs = table_in(remote, cluster_id="heir", options=options)
    assert heirs.load().rules == {0: Rule(1, 4, 4)}
    later = replace(LATER, lineages={0: Lineage([(1, 0), (1001, 4)])}, erasures={0: 2})
    assert heirs.commit([uploaded(segment(4, 10, epoch=1001))], histories=later).log.end(0) == 10


@pytest.mark.parametrize(
    ("recorded", "end", "adopted"),
    [
        (Rule(2, 25, 20), 8, Rule(2, 8, 8)),
        (Rule(2, 25, 3), 8, Rule(2, 8, 3)),
        (Rule(2, 25, 3), 0, Rule(2, 0, 0)),
        (Rule(2, 8, 3), 8, Rule(2, 8, 3)),
        (Rule(2, 4, 3), 8, Rule(2, 4, 3)),
    ],
)
def test_a_restored_partition_adopts_no_rule_above_its_remote_log(recorded: Rule, end: int, adopted: Rule) -> None:
    segments = [segment(0, end)] if end else []
    log = RemoteLog.of("the table", 7, segments, rules={0: recorded}, erased={0: 3})
    assert adopted_rules(log) == {0: adopted}
    assert last_rule(log, 0) == Rule(3, adopted.bound, adopted.tombstones_before)


def test_a_third_clusters_table_is_left_alone(place: tuple[Store, StoreOptions]) -> None:
    remote, options = place
    mine = table_in(remote, options=options)
    mine.ensure(SCHEMA)
    with pytest.raises(InconsistentClusterIdError, match="belongs to cluster 'c', neither to 'd' nor to 'heir'"):
        hand_over(mine, "d", "heir", options, CLOCK)
    mine.commit([uploaded(segment(0, 10))], histories=OURS)  # as "c", which still owns it


@pytest.mark.slow
def test_whatever_the_former_owner_has_committed_is_there_and_nothing_later(
    place: tuple[Store, StoreOptions],
) -> None:
    """It commits as fast as it can during the hand-over of the table."""
    remote, options = place
    mine = table_in(remote, options=options)
    mine.ensure(SCHEMA)
    committed = [0]
    started, over = threading.Event(), threading.Event()
    stopped: list[Exception] = []

    def commit() -> None:
        try:
            while not over.is_set():
                end = committed[0]
                mine.commit([uploaded(segment(end, end + 10))], histories=OURS)
                committed[0] = end + 10
                started.set()
        except Exception as error:
            stopped.append(error)
            started.set()

    thread = threading.Thread(target=commit)
    thread.start()
    started.wait()
    try:
        _until_it_wins(mine, options)
        end = table_in(remote, cluster_id="heir", options=options).load().end(0)
        thread.join(10)
    finally:
        over.set()  # or it would commit for ever, and keep the process from ending
        thread.join()
    assert [type(error) for error in stopped] == [InconsistentClusterIdError]
    assert committed[0] > 0
    assert end in (committed[0], committed[0] + 10), "of its last commit it may not have heard any more"
    assert table_in(remote, cluster_id="heir", options=options).load().end(0) == end


def _until_it_wins(topic: DeltaTopicTable, options: StoreOptions) -> None:
    """Repeat against another driver that commits without a pause, on a clock that does not wait."""
    for last in (False,) * 9 + (True,):
        try:
            hand_over(topic, "c", "heir", options, CLOCK)
            return
        except OutcomeUnknownError:
            if last:
                raise


def test_a_handover_that_storage_refuses_is_not_of_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Generic LocalFileSystem error: Permission denied (os error 13)")

    mine, options = table_in(open_store(f"file://{tmp_path}", StoreOptions())), StoreOptions()
    mine.ensure(SCHEMA)
    monkeypatch.setattr(delta_table, "set_properties", refuse)
    with pytest.raises(StorageAuthorizationError, match="cannot hand over the table"):
        hand_over(mine, "c", "heir", options, CLOCK)

"""Litter in a topic's remote folder: the table in ``stratalog.tiering.remote_objects``."""

from __future__ import annotations

import pytest

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName, remote_segment_path
from stratalog.partitions.store.protocol import StoredObject
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_objects import RemoteObjects, RemovedFiles, TopicLitter, Why, find_litter
from stratalog.tiering.remote_segment import RemoteSegment
from tests.unit.tiering_harness import segment

OLD, YOUNG, BEFORE_MS = 1_000, 9_000, 5_000
LOG = RemoteLog.of("table", 7, [segment(20, 30), segment(30, 40)])
"""The log starts at offset 20, the remote log ends at 40."""
LINEAGE = Lineage([(1, 0), (5, 45)])


def uploaded_at(modified_ms: int, *names: DataName) -> RemoteObjects:
    """A folder with these objects of partition 0."""
    return RemoteObjects.of(
        "t", [StoredObject(f"t/{remote_segment_path(0, name)}", 100, modified_ms, "v") for name in names]
    )


def judged(
    objects: RemoteObjects,
    *,
    removed: RemovedFiles | None = None,
    lineages: dict[int, Lineage] | None = None,
    tiered: bool = True,
) -> TopicLitter:
    return find_litter(
        objects,
        LOG,
        removed or RemovedFiles(),
        log_starts={0: 20},
        lineages=lineages or {},
        tiered=tiered,
        before_ms=BEFORE_MS,
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param(DataName(20, 30, 1), None, id="listed"),
        pytest.param(DataName(10, 20, 1), Why.EXPIRED, id="below the log start"),
        pytest.param(DataName(19, None, 1), Why.EXPIRED, id="an append below the log start"),
        pytest.param(DataName(10, 25, 1), Why.SUPERSEDED, id="begins below the log start"),
        pytest.param(DataName(20, 40, 1), Why.SUPERSEDED, id="other files hold its offsets"),
        pytest.param(DataName(35, 50, 1), Why.SUPERSEDED, id="begins below the end of the remote log"),
        pytest.param(DataName(40, 45, 1), None, id="the next to be committed"),
        pytest.param(DataName(40, None, 1), None, id="an append, the next to be committed"),
        pytest.param(DataName(45, 50, 5), None, id="behind that, of the leader's epoch"),
        pytest.param(DataName(45, 50, 1), Why.LOST_HISTORY, id="of an epoch that ended before"),
        pytest.param(DataName(40, 50, 3), Why.LOST_HISTORY, id="of an epoch that the history lacks"),
    ],
)
def test_an_old_upload_goes_when_no_commit_will_take_it(name: DataName, why: Why | None) -> None:
    found = judged(uploaded_at(OLD, name), lineages={0: LINEAGE})
    assert list(found.litter.values()) == ([] if why is None else [why])
    assert found.undecided == frozenset()


@pytest.mark.parametrize(
    "name", [DataName(10, 20, 1), DataName(20, 40, 1), DataName(40, 45, 1), DataName(40, 50, 3)], ids=str
)
@pytest.mark.parametrize("tiered", [True, False])
def test_a_young_upload_stays_whatever_it_is(name: DataName, tiered: bool) -> None:
    """Its commit may be in flight."""
    assert judged(uploaded_at(YOUNG, name), lineages={0: LINEAGE}, tiered=tiered).litter == {}


def test_an_object_that_reaches_above_the_log_start_stays_until_other_files_hold_its_offsets() -> None:
    """A commit that began before the log start moved may list it: it also holds records above."""
    objects = uploaded_at(OLD, DataName(10, 25, 1))
    lineages = {0: LINEAGE}
    for log, whys in ((RemoteLog.empty("table"), []), (LOG, [Why.SUPERSEDED])):
        found = find_litter(
            objects, log, RemovedFiles(), log_starts={0: 20}, lineages=lineages, tiered=True, before_ms=BEFORE_MS
        )
        assert list(found.litter.values()) == whys


def test_beyond_the_remote_end_only_a_lineage_shows_the_history() -> None:
    found = judged(uploaded_at(OLD, DataName(40, 50, 3), DataName(10, 20, 1)))
    assert list(found.litter.values()) == [Why.EXPIRED]
    assert found.undecided == {0}


@pytest.mark.parametrize(("due", "goes"), [(True, [Why.REMOVED]), (False, [])])
def test_an_object_that_left_the_table_is_deleted_after_its_delay_and_no_sooner(
    due: bool, goes: list[Why]
) -> None:
    """However old its object is, even below the log start: a reader may have planned it."""
    name = DataName(10, 20, 1)
    path = frozenset({remote_segment_path(0, name)})
    removed = RemovedFiles(path, path if due else frozenset())
    assert list(judged(uploaded_at(OLD, name), removed=removed).litter.values()) == goes


def test_an_object_that_left_the_table_and_came_back_stays() -> None:
    name = DataName(20, 30, 1)
    path = frozenset({remote_segment_path(0, name)})
    assert judged(uploaded_at(OLD, name), removed=RemovedFiles(path, path)).litter == {}


def test_only_listed_objects_stay_when_a_topic_is_no_longer_tiered() -> None:
    found = judged(uploaded_at(OLD, DataName(20, 30, 1), DataName(40, 45, 1)), tiered=False)
    assert list(found.litter.values()) == [Why.NOT_TIERED]


def test_strangers_and_the_tables_own_log_are_never_deleted() -> None:
    names = ["t/_delta_log/0.json", "t/notes.txt", "t/0/part-0.parquet", f"t/0/x/{DataName(0, 5, 1)}"]
    found = RemoteObjects.of("t", [StoredObject(name, 1, OLD, "v") for name in names])
    assert ([o.name for o in found.log_entries], [o.name for o in found.foreign.values()]) == (
        names[:1],
        names[1:],
    )
    assert judged(found).litter == {}


@pytest.mark.parametrize(("size", "holds"), [(100, True), (99, False)])
def test_an_object_is_there_at_the_size_that_the_table_says(size: int, holds: bool) -> None:
    name = DataName(0, 10, 1)
    found = RemoteObjects.of("t", [StoredObject(f"t/{remote_segment_path(0, name)}", size, 5_000, "v")])
    assert found.holds(RemoteSegment(0, name, 10, 100, modified_ms=5_000)) == holds

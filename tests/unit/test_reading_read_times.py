"""A read of a range of times: the records of these times, in any order in the log, from the files that may hold
some. Kafka's look-up has a separate name (``FirstAt``)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog import Committed, FirstAt
from stratalog.engine.reading.bounds import Bound
from stratalog.engine.reading.plan_read import plan_again
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.engine.replication.replica_selector import ClientMetadata
from stratalog.partitions.lookup import TimeRange
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch

HOUR_S = 3600
DAYS = 20
WHERE = ("local", "remote", "both")


def at(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def fleet(folder: Path, rng: random.Random, where: str) -> tuple[LiveCluster, list[int]]:
    """A partition whose appends are files with events of a few days, in any order; and the time of each offset, in
    hours.
    """
    live = LiveCluster(folder)
    live.tiered()
    times: list[int] = []
    for number in range(12):
        around = rng.randrange(DAYS * 24)
        hours = [max(0, around + rng.randrange(-36, 36)) for _ in range(8)]
        rows = pa.Table.from_batches(
            [batch([f"{len(times) + n}"], hour * HOUR_S * 1_000_000) for n, hour in enumerate(hours)]
        ).combine_chunks()
        live.cluster.append_batches("t", {0: rows.to_batches()}).raise_for_failures()
        times += hours
        if (where == "remote" and number == 11) or (where == "both" and number == 6):
            live.tier_and_drop()
    return live, times


def offsets_of(live: LiveCluster, plan: ReadPlan) -> list[int]:
    """The offsets of the planned files that have these times."""
    assert plan.times is not None
    found = []
    for part in plan:
        for offset, value in live.records(part):
            assert value == f"{offset}"
            found.append(offset)
    return found


def within(times: Sequence[int], start: int | None, end: int | None) -> set[int]:
    return {
        offset
        for offset, hour in enumerate(times)
        if (start is None or hour >= start) and (end is None or hour < end)
    }


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("seed", range(3))
def test_the_files_of_a_range_hold_all_records_of_its_times_and_each_may_hold_one(
    tmp_path: Path, where: str, seed: int
) -> None:
    """Event times out of order: one day, and ranges open on one side. The bounds of each planned file meet the
    range, and those of other files do not.
    """
    rng = random.Random(seed)
    live, times = fleet(tmp_path, rng, where)
    files = list(live.cluster.plan_read("t"))
    assert any(part.remote for part in files) == (where != "local")
    spans = {part.start: times[part.start : part.end] for part in files}
    for _ in range(40):
        day = rng.randrange(DAYS)
        start, end = rng.choice([(day * 24, day * 24 + 24), (day * 24, None), (None, day * 24 + 7)])
        asked = [None if hour is None else at(hour * HOUR_S) for hour in (start, end)]
        plan = live.cluster.plan_read("t", *asked)
        low, high = start or 0, DAYS * 1000 if end is None else end
        meeting = [first for first, span in spans.items() if max(span) >= low and min(span) < high]
        assert [part.start for part in plan] == meeting
        assert within(times, start, end) <= {*offsets_of(live, plan)}
        assert all(part.whole for part in plan), "nothing is cut by a look-up"


@pytest.mark.slow
def test_an_empty_range_plans_no_file_and_asks_no_remote_table(tmp_path: Path) -> None:
    live, times = fleet(tmp_path, random.Random(1), "both")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "stratalog.tiering.delta_table.DeltaTopicTable.load", lambda _: pytest.fail("the table was read")
        )
        same = live.cluster.plan_read("t", at(24 * HOUR_S), at(24 * HOUR_S))
    assert (list(same), same.records, same.size_bytes) == ([], 0, 0)
    long_ago = live.cluster.plan_read("t", None, at(min(times) * HOUR_S))
    assert (list(long_ago), long_ago.records) == ([], 0)
    assert list(live.cluster.plan_read("t", 3, 3)) == [], "of offsets, too, also in the middle of a file"
    later = again(live, same)
    assert list(later) == []


def again(live: LiveCluster, plan: ReadPlan) -> ReadPlan:
    return with_ports(plan_again, ports_of(live.cluster))(plan, ClientMetadata())


@pytest.mark.slow
def test_a_plan_of_times_gives_the_same_rows_whenever_it_is_read(tmp_path: Path) -> None:
    """This is so even if all unneeded files are deleted, and the plan's files have moved to the other tier."""
    live, times = fleet(tmp_path, random.Random(2), "local")
    hour = times[40]
    start, end = at(hour * HOUR_S), at((hour + 1) * HOUR_S)
    plan = live.cluster.plan_read("t", start, end)
    before = offsets_of(live, plan)
    nothing = live.cluster.plan_read("t", None, at(min(times) * HOUR_S))
    live.append(["new"], at_ms=hour * HOUR_S * 1000).raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.delete_records("t", {0: plan[0].start}).raise_for_failures()
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    later = again(live, plan)
    assert later.times == plan.times
    assert {part.remote for part in plan} == {False}
    assert True in {part.remote for part in later}
    assert offsets_of(live, later) == before
    assert list(again(live, nothing)) == []


@pytest.mark.slow
def test_a_range_of_times_goes_together_with_offsets_and_groups(tmp_path: Path) -> None:
    live, times = fleet(tmp_path, random.Random(3), "both")
    live.cluster.groups.commit("g", {("t", 0): 40}).raise_for_failures()
    end = at(10 * 24 * HOUR_S)
    bounds: list[Bound] = [40, Committed("g"), {0: 40}]
    plans = [live.cluster.plan_read("t", start, end) for start in bounds]
    assert plans[0].partitions == plans[1].partitions == plans[2].partitions
    found = offsets_of(live, plans[0])
    assert {offset for offset in within(times, None, 240) if offset >= 40} <= {*found}
    assert min(found) >= 40


@pytest.mark.slow
def test_the_look_up_of_kafka_has_its_own_name(tmp_path: Path) -> None:
    """The look-up reads from the first such late record on, including later records of earlier times; the time may
    be text.
    """
    live, times = fleet(tmp_path, random.Random(4), "both")
    first = next(offset for offset, hour in enumerate(times) if hour >= 240)
    plan = live.cluster.plan_read("t", FirstAt("1970-01-11"))
    assert (plan.times, plan.partitions[0].start, plan.partitions[0].end) == (None, first, len(times))
    assert any(hour < 240 for hour in times[first:])


def test_a_record_that_came_without_a_timestamp_has_the_time_of_its_append(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.tiered()
    rows = batch(["undated"], 0)
    index = rows.schema.get_field_index("timestamp")
    undated = rows.set_column(index, rows.schema.field(index), pa.nulls(1, rows.schema.field(index).type))
    live.cluster.append_batches("t", {0: [undated]}).raise_for_failures()
    live.append(["dated"], at_ms=0).raise_for_failures()
    now = at(live.clock.now_ms() / 1000)
    assert [part.start for part in live.cluster.plan_read("t", now - timedelta(hours=1))] == [0]
    assert [part.start for part in live.cluster.plan_read("t", None, "1970-01-02")] == [1]


def test_the_plan_shows_its_times(tmp_path: Path) -> None:
    live, _ = fleet(tmp_path, random.Random(5), "both")
    text = live.cluster.plan_read("t", "1970-01-03T12:00+02:00", "1970-01-05").explain()
    assert "read t: at most " in text
    assert (
        "of these files only records with a timestamp >= 1970-01-03T10:00:00+00:00 and < 1970-01-05T00:00:00+00:00"
        in text
    )
    assert "skipped by time: " in text
    assert "timestamp" not in live.cluster.plan_read("t").explain()


@pytest.mark.parametrize(
    ("times", "span", "meets"),
    [
        (TimeRange(10, 20), (0, 9), False),
        (TimeRange(10, 20), (0, 10), True),
        (TimeRange(10, 20), (19, 99), True),
        (TimeRange(10, 20), (20, 99), False),
        (TimeRange(10, 20), (0, 99), True),
        (TimeRange(10, None), (9, 10), True),
        (TimeRange(None, 10), (10, 11), False),
        (TimeRange(None, 10), (-5, -5), True),
        (TimeRange(10, 10), (0, 99), False),
        (TimeRange(), (0, 0), True),
    ],
)
def test_a_range_is_half_open(times: TimeRange, span: tuple[int, int], meets: bool) -> None:
    assert times.meets(*span) is meets
    assert replace(times).is_empty == (times == TimeRange(10, 10))

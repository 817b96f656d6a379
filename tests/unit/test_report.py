"""A report of failures names the thing, the code, the fault and the remedy, each once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.driver.report import Failure, Report, utc_text
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.paths import EpochName
from tests.unit.cluster_harness import LiveCluster, fence, unfence
from tests.unit.tampering import Spot


@pytest.mark.parametrize(
    ("item", "message", "found"),
    [
        ("a-0", "a-0: it is gone; heal it", "it is gone; heal it"),
        ("a-0", "a-0 has no leader: elect one", "has no leader: elect one"),
        ("a-0", "a-0 on broker 2: it is gone", "on broker 2: it is gone"),
        ("a-0 on broker 2", "a-0 on broker 2: it is gone", "it is gone"),
        ("a-0 on broker 2", "a-0: it is gone", "it is gone"),
        ("a-0 on broker 2 could not be healed", "a-0 on broker 2: it is gone", "it is gone"),
        ("a", "topic 'a': unknown config", "unknown config"),
        ("voter 3 (file:///b3)", "voter 3 (file:///b3): is it mounted?", "is it mounted?"),
        ("a-0", "a-01: it is another one", "a-01: it is another one"),
        ("a-01", "a-0: it is another one", "a-0: it is another one"),
        ("a-0", "file:///b1/x.parquet: it is damaged", "file:///b1/x.parquet: it is damaged"),
        ("a-0", "nothing is wrong", "nothing is wrong"),
        ("a-0", "", ""),
    ],
)
def test_a_failure_says_its_item_once(item: str, message: str, found: str) -> None:
    assert Failure(item, "CODE", message).message == found
    assert f"FAILED {item}: CODE: {found}" in str(Report("test", [], [Failure(item, "CODE", message)]))


def test_a_report_is_a_table_for_programs() -> None:
    """Whole numbers stay whole if a row lacks them; values of several types are text."""
    rows = [{"topic": "a", "end": 2**62, "seen": 1}, {"topic": "b", "lag": 0.5, "seen": "never"}]
    report = Report("describe", rows)
    assert report.to_arrow().to_pylist() == [
        {"topic": "a", "end": 2**62, "seen": "1", "lag": None},
        {"topic": "b", "end": None, "seen": "never", "lag": 0.5},
    ]
    frame = report.to_pandas()
    assert [str(kind) for kind in frame.dtypes] == ["object", "Int64", "object", "float64"]
    assert frame["end"][0] == 2**62
    assert Report("describe", ()).to_arrow().num_rows == len(Report("describe", ()).to_pandas()) == 0


def repeated(line: str) -> list[str]:
    """A sequence of four or more words, or a subject, that a line repeats."""
    parts = [part.strip() for part in re.split(r"; |: |\. ", line)]
    subject = re.compile(r"(topic '\w+'|\w+-\d+( on broker \d+| in .*)?)")
    messages = [part for part in parts if len(part.split()) > 3 or subject.fullmatch(part)]
    return sorted({part for part in messages if messages.count(part) > 1})


def test_the_test_itself_finds_repeated_texts() -> None:
    assert repeated("a-0: CODE: it is gone") == []
    assert repeated("a-0: CODE: a-0: it is gone") == ["a-0"]
    assert repeated("a-0: 1 is in sync; none of it was appended; none of it was appended")


def troubles(live: LiveCluster) -> dict[str, Callable[[], object]]:
    """Faults of topic ``t`` with three replicas, tiered, by name."""
    leader, follower = live.leader(), live.followers()[0]

    def damage() -> None:
        log = live.log(follower)
        Spot(live.store(follower), log.chain[-1].file.object.name).flip(30)

    def lose(broker: int) -> Callable[[], None]:
        return lambda: live.store(broker).delete([link.file.object.name for link in live.log(broker).chain[1:]])

    def lose_registers() -> None:
        replica = live.replica(leader)
        live.store(leader).delete([replica.path(EpochName(live.replicas().epoch))])

    def leaderless() -> None:
        others = [broker for broker in (1, 2, 3) if broker != leader]
        fence(live, *others)
        live.append(["z"])
        fence(live, leader)
        unfence(live, *others)

    def lose_remote() -> None:
        for path in live.remote.rglob("*.parquet"):
            path.unlink()

    def lose_table() -> None:
        for path in [*live.remote.rglob("*.json"), *live.remote.rglob("*.parquet")]:
            path.unlink()

    return {
        "nothing": lambda: None,
        "a damaged file": damage,
        "a lost file": lose(follower),
        "a leader that lost files": lose(leader),
        "lost registers": lose_registers,
        "no leader": leaderless,
        "a fenced broker": lambda: fence(live, follower),
        "a wiped root": lambda: live.wipe(max(1, 2)),
        "a small ISR": lambda: (
            live.cluster.topics.alter_configs("t", {"min.insync.replicas": "3"}),
            fence(live, follower),
        ),
        "lost remote objects": lose_remote,
        "a lost remote table": lose_table,
        "no voters": lambda: live.wipe(1),
    }


TROUBLES = (
    *("nothing", "a damaged file", "a lost file", "a leader that lost files", "lost registers", "no leader"),
    *("a fenced broker", "a wiped root", "a small ISR", "lost remote objects", "a lost remote table", "no voters"),
)


def run_all(live: LiveCluster) -> Iterator[Report | StratalogError]:
    """Run every operation on topics and brokers; returns the results."""
    calls: tuple[Callable[[Cluster], object], ...] = (
        lambda cluster: live.append(["x"], driver=cluster),
        lambda cluster: live.append(["x"], producer="p", sequence=3, driver=cluster),
        lambda cluster: live.append(["x"], producer="p", sequence=1, driver=cluster),
        lambda cluster: cluster.describe(),
        lambda cluster: cluster.brokers.list(),
        lambda cluster: cluster.verify(deep=True),
        lambda cluster: cluster.replicate(check=False),
        lambda cluster: cluster.elect(check=False),
        lambda cluster: cluster.elect(unclean=True, dry_run=True),
        lambda cluster: cluster.merge(check=False),
        lambda cluster: cluster.tier(check=False),
        lambda cluster: cluster.retain(check=False),
        lambda cluster: cluster.vacuum(),
        lambda cluster: cluster.discarded(),
        lambda cluster: cluster.groups.commit("group", {("t", 0): 1}),
        lambda cluster: cluster.groups.lag("group"),
        lambda cluster: cluster.brokers.register([2], trust_copy=True, check=False),
        lambda cluster: cluster.bootstrap(2, check=False),
        lambda cluster: cluster.heal(check=False),
        lambda cluster: cluster.fetch("t", 0, 0),
        lambda cluster: cluster.plan_read("t"),
    )
    for call in calls:
        try:
            answer = call(live.driver())
        except StratalogError as error:
            yield error
        else:
            if isinstance(answer, Report):
                yield answer


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
def test_no_error_message_repeats_itself(tmp_path: Path, trouble: str) -> None:
    live = LiveCluster(tmp_path)
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    live.fill("def")
    live.append(["p"], producer="p", sequence=2).raise_for_failures()
    made = troubles(live)
    assert tuple(made) == TROUBLES
    made[trouble]()
    lines = []
    for answer in run_all(live):
        if isinstance(answer, Report):
            lines += [*map(str, answer.failures)]
            lines += answer.notes
        else:
            lines.append(f"{answer.code}: {answer}")
    assert {line: twice for line in lines if (twice := repeated(line))} == {}
    assert lines


@pytest.mark.parametrize("time_ms", [2**63 - 1, -(2**63), 10**20])
def test_a_time_that_no_calendar_has_is_its_first_or_last(time_ms: int) -> None:
    """A record of a group or a transaction may contain such a time."""
    year = datetime.fromisoformat(utc_text(time_ms)).year
    assert year == (1 if time_ms < 0 else 9999)

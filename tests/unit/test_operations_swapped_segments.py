"""A segment in place of another one: intact, with the same offsets and the same name, but of another log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import CorruptSegmentError
from tests.unit.cluster_harness import LiveCluster

KEYS = {"without a key": lambda: None, "with a key": lambda: "bm9ib2R5IGtub3dzIHRoaXMgc2VjcmV0IG9mIG1pbmU="}
OTHERS = {"of another partition": ("t", 1), "of another topic": ("u", 0)}
FROM_ELSEWHERE = "the file was copied here from another place"


@pytest.fixture(params=KEYS)
def live(tmp_path: Path, request: pytest.FixtureRequest) -> LiveCluster:
    return LiveCluster(tmp_path, on_disk=True, cluster_key=KEYS[request.param])


def swap(one: Path, two: Path) -> None:
    """Swap the content of the first segments of the topics."""
    name = min(path.name for path in one.glob("*.parquet"))
    contents = (two / name).read_bytes(), (one / name).read_bytes()
    for folder, content in zip((one, two), contents, strict=True):
        (folder / name).unlink()
        (folder / name).write_bytes(content)


def fill(live: LiveCluster, create: Callable[..., None]) -> None:
    for topic in ("t", "u"):
        create(topic, partitions=2)
        for number in range(3):
            values = {partition: [f"{topic}{partition}{number}"] for partition in range(2)}
            live.append(values, topic).raise_for_failures()


def named(report: Report, *items: str) -> None:
    """The report names the first segments of these topics with the reason, and nothing else."""
    assert {failure.item for failure in report.failures} == set(items)
    assert all(FROM_ELSEWHERE in failure.message for failure in report.failures)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_in_a_replica_it_is_read_by_nobody_named_and_healed(live: LiveCluster, other: str) -> None:
    fill(live, live.topic)
    broker = live.leader()
    topic, partition = OTHERS[other]
    swap(*(live.root(broker) / live.replica(broker, *of).folder for of in (("t", 0), (topic, partition))))
    live.cluster = live.driver()
    with pytest.raises(CorruptSegmentError, match=FROM_ELSEWHERE):
        [live.replica(broker).footer(link.file) for link in live.log(broker).chain]
    assert live.cluster.fetch("t", 0, 0).records.column("value").to_pylist() == [b"t00", b"t01", b"t02"]
    for deep in (False, True):
        named(live.cluster.verify(deep=deep), f"t-0 on broker {broker}", f"{topic}-{partition} on broker {broker}")
    live.cluster.heal().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: ["t00", "t01", "t02"], 1: ["t10", "t11", "t12"]}


@pytest.mark.slow
def test_from_a_leader_it_is_copied_to_nobody(live: LiveCluster) -> None:
    folders = {}
    for topic in ("t", "u"):
        live.topic(topic)
        live.append([topic], topic, acks="leader").raise_for_failures()
        folders[topic] = live.root(live.leader(topic)) / live.replica(live.leader(topic), topic).folder
    swap(*folders.values())
    live.cluster = live.driver()
    notes = live.cluster.replicate().notes
    assert len(notes) == 2
    assert all("broker 1 leaves the ISR" in note and FROM_ELSEWHERE in note for note in notes)
    assert all(live.data(follower, topic) == {} for topic in folders for follower in live.followers(topic))


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_in_the_remote_tier_it_is_read_by_nobody_named_and_healed(live: LiveCluster, other: str) -> None:
    fill(live, live.tiered)
    live.cluster.tier().raise_for_failures()
    topic, partition = OTHERS[other]
    folders = {path.name[0]: path for path in live.remote.iterdir() if path.name[0] in "tu"}
    swap(folders["t"] / "0", folders[topic] / str(partition))
    live.cluster = live.driver()
    assert {failure.item for failure in live.cluster.verify(deep=True).failures} == {
        "t-0 in the remote tier",
        f"{topic}-{partition} in the remote tier",
    }
    live.cluster.retain(check=False)
    live.cluster.heal().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.read() == {0: ["t00", "t01", "t02"], 1: ["t10", "t11", "t12"]}

"""Topics whose names here differ from their names in the source: runs and comparisons find them by the source's
name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.bridges.jobs.mirror import main as job
from stratalog.bridges.mirror.compare import compare
from stratalog.bridges.mirror.mirror import end_mirror, mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.topic_commands import AlterConfigs, CreateTopic
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import InvalidCallError, InvalidConfigError, TopicAlreadyExistsError
from tests.bridges.memory_source import OTHER_ID, TOPIC_ID, MemorySource
from tests.bridges.test_mirror_in_bulk import by_tasks
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.metadata_harness import Metadata, an_id

LONG = "t" * 249
"""The longest name in Kafka."""
ONE = MirrorOptions(replication_factor=1)


def run(live: LiveCluster, source: MemorySource, *, bulk: bool = False, **rename: str) -> Report:
    options = replace(ONE, rename=rename, bulk_offsets=1 if bulk else None)
    ports = by_tasks(live) if bulk else ports_of(live.cluster)
    return mirror(ports.metadata, ports.storage, ports.execution, ports.memory, source, [source.name], options)


def some(name: str = LONG) -> MemorySource:
    source = MemorySource(3, name)
    for number, log in enumerate(source.logs):
        log.append(*"abc"[: number + 1], gaps=number)
    source.groups = {"g": {(name, 1): OffsetAndMetadata(2), ("other", 0): OffsetAndMetadata(1)}}
    return source


def failures_of(report: Report) -> list[tuple[str, str]]:
    return [(failure.code, failure.message) for failure in report.failures]


def topics(live: LiveCluster) -> set[str]:
    return {name for name in live.cluster.image.topic_ids if not name.startswith("__")}


def test_a_name_that_is_too_long_here_is_refused_with_what_to_do(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    ((code, found),) = failures_of(run(live, some()))
    assert code == "INVALID_TOPIC_EXCEPTION"
    assert found.endswith(
        f"has 249 characters, but here a name has at most 222: give it another name: --as {LONG}=NAME"
    )
    assert topics(live) == set()


@pytest.mark.parametrize("bulk", [False, True], ids=["threads", "tasks"])
def test_records_and_groups_come_under_the_name_here_in_every_later_run(bulk: bool, tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some()
    report = run(live, source, bulk=bulk, **{LONG: "t"}).raise_for_failures()
    assert [(row["topic"], row["partition"], row["records"]) for row in report.rows] == [
        ("t", number, number + 1) for number in range(3)
    ]
    assert live.cluster.groups.committed("g")["t", 1].offset == 2
    source.logs[2].append("later")
    source.groups["g"][LONG, 2] = OffsetAndMetadata(6)
    assert run(live, source, bulk=bulk).raise_for_failures().totals["records"] == 1
    assert live.cluster.groups.committed("g")["t", 2].offset == 6
    assert run(live, source, **{LONG: "t"}).raise_for_failures().totals["records"] == 0
    assert topics(live) == {"t"}
    compared = with_ports(compare, ports_of(live.cluster))(source, [LONG]).raise_for_failures()
    assert [(row["topic"], row["there"], row["here"]) for row in compared.rows] == [
        ("t", 1, 1),
        ("t", 2, 2),
        ("t", 3 + 1, 4),
    ]
    source.logs[0].records[0] = source.logs[0].records[0]._replace(value=b"other")
    ports = ports_of(live.cluster)
    found = compare(ports.metadata, ports.storage, ports.execution, ports.memory, source, [LONG])
    assert [code for code, _ in failures_of(found)] == ["RECORDS_DIFFER"]


def test_a_topic_is_never_mirrored_twice_unasked(tmp_path: Path) -> None:
    live, short, same = LiveCluster(tmp_path), some("short"), some("same")
    run(live, short, short="s").raise_for_failures()
    run(live, same).raise_for_failures()
    for source, present in ((short, "s"), (same, "same")):
        with (
            live.unchanged(),
            pytest.raises(
                InvalidCallError,
                match=f"'{source.name}' of the source is mirrored here as '{present}', .* 'other': run again",
            ),
        ):
            run(live, source, **{source.name: "other"})
    with_ports(end_mirror, ports_of(live.cluster))(["s"]).raise_for_failures()
    with live.unchanged():
        ((code, found),) = failures_of(run(live, short))
    assert code == "TOPIC_ALREADY_EXISTS"
    assert "'short' of the source was mirrored here as 's', until that mirror was ended" in found
    run(live, short, short="again").raise_for_failures()
    assert run(live, short).raise_for_failures().rows[0]["topic"] == "again"
    with_ports(compare, ports_of(live.cluster))(short, ["short"]).raise_for_failures()
    assert topics(live) == {"s", "same", "again"}


def test_one_of_two_mirrors_that_begin_at_once_with_two_names_continues() -> None:
    metadata = Metadata()
    one = {"mirror.source": f"kafka-1/{TOPIC_ID}", "mirror.source.topic": "kafka-1/a"}
    metadata.do(CreateTopic(name="x", topic_id=an_id(5), configs=one))
    for name, configs in (("y", one), ("a", {"mirror.source": f"kafka-1/{OTHER_ID}"})):
        with pytest.raises(TopicAlreadyExistsError, match=f"'x' already mirrors kafka-1/a, and '{name}' would be"):
            CreateTopic(name=name, topic_id=an_id(6), configs=configs).decide(metadata.image)
    metadata.do(CreateTopic(name="a", topic_id=an_id(6), configs={"mirror.source": f"kafka-2/{TOPIC_ID}"}))
    metadata.do(AlterConfigs("x", {"mirror.source": None}))
    metadata.do(CreateTopic(name="y", topic_id=an_id(7), configs=one))


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic("mine")
    assert [code for code, _ in failures_of(run(live, some("a"), a="mine"))] == ["TOPIC_ALREADY_EXISTS"]
    run(live, some("a"), a="x").raise_for_failures()
    for source, rename in ((some("b"), {"b": "x"}), (some("x"), {})):
        source.topic_id = OTHER_ID
        ((code, found),) = failures_of(run(live, source, **rename))
        assert code == "INVALID_TOPIC_EXCEPTION"
        assert f"mirrors topic 'a' of that cluster, not '{source.name}'" in found
        assert found.endswith(f"--as {source.name}=NAME")


def test_a_topic_that_was_recreated_is_detected_by_its_name_there(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some("a")
    run(live, source, a="x").raise_for_failures()
    source.topic_id = OTHER_ID
    assert [code for code, _ in failures_of(run(live, source))] == ["INCONSISTENT_TOPIC_ID"]
    assert topics(live) == {"x"}


def test_names_that_cannot_be_given_are_refused(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), some("a")
    with pytest.raises(InvalidCallError, match=r"'b' is renamed \(--as\), but is not among the topics"):
        run(live, source, b="x")
    assert [code for code, _ in failures_of(run(live, source, a="not a name"))] == ["INVALID_TOPIC_EXCEPTION"]
    assert [code for code, _ in failures_of(run(live, source, a=""))] == ["INVALID_TOPIC_EXCEPTION"]
    assert topics(live) == set()


def test_the_name_there_stays_with_a_mirror(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    run(live, some("a"), a="x").raise_for_failures()
    key = "mirror.source.topic"
    assert live.cluster.image.topic("x").configs[key] == "kafka-1/a"
    with pytest.raises(InvalidConfigError, match="cannot be removed from a mirror"):
        live.cluster.topics.alter_configs("x", {key: None})
    with pytest.raises(InvalidConfigError, match="a mirror must start at the creation of the topic"):
        live.cluster.topics.alter_configs("x", {key: "kafka-1/b"})
    with_ports(end_mirror, ports_of(live.cluster))(["x"]).raise_for_failures()
    live.cluster.topics.alter_configs("x", {key: None})
    run(live, some("a")).raise_for_failures()
    assert topics(live) == {"x", "a"}, "nothing remembers it"


def test_the_job_takes_one_name_for_a_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    asked = ["--cluster", str(live.file), "a"]
    assert job([*asked, "--from", "localhost:1", "--as", "a=x", "--as", "a=y"]) == 2
    assert "--as: a is given twice" in capsys.readouterr().err
    assert job([*asked, "--end", "--as", "a=x", "--yes"]) == 2
    assert "--end and --as cannot be used together" in capsys.readouterr().err

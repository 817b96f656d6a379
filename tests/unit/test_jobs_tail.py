"""The command line of jobs/tail: what users of kafka-console-consumer.sh and of tail(1) look for."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from jobs.main import main as stratalog
from jobs.offsets import main as offsets
from jobs.tail import main as tail
from partitions.clock import SystemClock
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch


def built(folder: Path) -> LiveCluster:
    """``t``, two partitions of twelve records and one."""
    live = LiveCluster(folder, on_disk=True)
    live.topic(partitions=2)
    live.append({0: [f"a{number}" for number in range(12)], 1: ["b"]}).raise_for_failures()
    return live


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return built(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
    """``live``, for those who change nothing."""
    return built(tmp_path_factory.mktemp("shared"))


def run(live: LiveCluster, *argv: str) -> int:
    return tail(["t", "--cluster", str(live.file), *argv])


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The values, by partition."""
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    return [line[4] for line in sorted(lines, key=lambda line: (int(line[0]), int(line[1])))]


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ((), [*(f"a{number}" for number in range(2, 12)), "b"]),
        (("-n", "2"), ["a10", "a11", "b"]),
        (("-n", "0"), []),
        (("-n", "1", "--partition", "0"), ["a11"]),
        (("--from", "0:10,1:1"), ["a10", "a11"]),
        (("--from", "earliest", "--partition", "1"), ["b"]),
        (("--from", "11", "--partition", "0"), ["a11"]),
        (("--from", "earliest", "--partition", "0", "--max-messages", "3"), ["a0", "a1", "a2"]),
        (("--from", "1970-01-01T00:00:00.001011", "--partition", "0"), ["a11"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_where_it_begins(
    shared: LiveCluster, argv: tuple[str, ...], found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.unchanged():
        assert run(shared, *argv) == 0
    assert shown(capsys) == found


def test_a_line_is_partition_offset_timestamp_key_and_value(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shared, "-n", "1", "--partition", "1") == 0
    out, err = capsys.readouterr()
    assert out == "1\t0\t1970-01-01T00:00:00.001+00:00\t\tb\n"
    assert "tail: done, records 1" in err


def test_json_is_an_object_a_line_and_the_report_at_the_end(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shared, "-n", "1", "--partition", "1", "--json") == 0
    record, report = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert record == {
        "partition": 1,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:00.001+00:00",
        "key": None,
        "value": "b",
        "headers": [],
    }
    assert (report["operation"], report["totals"]["records"]) == ("tail", 1)
    (row,) = report["rows"]
    assert (row["partition"], row["start"], row["end"]) == (1, 0, 1)


def test_it_goes_on_where_a_group_has_come_to(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    live.cluster.alter_configs(None, {"offsets.topic.num.partitions": "1"})
    live.cluster.commit("g", {("t", 0): 11})
    with live.unchanged():
        assert run(live, "--group", "g") == 0
    assert shown(capsys) == ["a11", "b"]
    assert run(live, "--group", "nobody") == 2
    assert "ERROR GROUP_ID_NOT_FOUND: group 'nobody' does not exist" in capsys.readouterr().err


def test_it_follows_until_interrupted(
    live: LiveCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0

    def sleep(self: SystemClock, seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            live.append(["new"]).raise_for_failures()
        if waits == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    assert run(live, "-f", "-n", "1", "--partition", "0") == 0
    assert shown(capsys) == ["a11", "new"]


def test_following_ends_with_a_timeout_or_a_number_of_records(
    shared: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shared, "-f", "--from", "earliest", "--max-messages", "13") == 0
    assert len(shown(capsys)) == 13
    assert run(shared, "-f", "-n", "0", "--timeout", "1ms") == 0
    assert shown(capsys) == []


def test_a_reader_in_a_rack(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    live.cluster.alter_configs(
        None, {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    )
    for rack, broker in (("a", 1), ("b", 2), ("c", 3)):
        assert run(live, "-n", "1", "--json", "--client-rack", rack) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert {row["broker"] for row in report["rows"]} == {broker}
        assert report["totals"]["cross_rack_bytes"] == 0


def test_committed_records_only(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    live.cluster.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    live.cluster.transaction("loader").append_batches("t", {1: [batch(["open"])]})
    assert run(live, "--partition", "1") == 0
    assert shown(capsys) == ["b", "open"]
    assert run(live, "--partition", "1", "--isolation", "read_committed") == 0
    assert shown(capsys) == ["b"]
    for isolation, end in (("read_uncommitted", 2), ("read_committed", 1)):
        given = ["--topics", "t", "--isolation", isolation, "--cluster", str(live.file), "--json"]
        assert offsets(given) == 0
        assert json.loads(capsys.readouterr().out)["rows"][1]["offset"] == end
    assert run(live, "--isolation", "serializable") == 2
    assert "'serializable' (choose from 'read_uncommitted', 'read_committed')" in capsys.readouterr().err


def test_nobody_who_reads_on_is_no_error(
    shared: LiveCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Closed(io.StringIO):
        def __init__(self, file: Any) -> None:
            super().__init__()
            self.file = file

        def fileno(self) -> int:
            return int(self.file.fileno())

        def write(self, text: str) -> int:
            raise BrokenPipeError

    with (tmp_path / "pipe").open("w") as file:
        monkeypatch.setattr("sys.stdout", Closed(file))
        assert run(shared) == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("-n", "-1"), "numbers of 0 or more"),
        (("-n", "1", "--from", "0"), "not allowed with"),
        (("--group", "g", "--from", "0"), "not allowed with"),
        (("--partition", "5"), "ERROR UNKNOWN_TOPIC_OR_PARTITION: topic 't' has no partition 5"),
        (("--from", "99"), "ERROR OFFSET_OUT_OF_RANGE"),
        (("--from", "2999-01-01"), "has not come"),
        (("--from", "soon"), "give one of"),
        (("--auto-offset-reset", "newest"), "invalid choice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_calls(
    shared: LiveCluster, argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shared, *argv) == 2
    assert message in capsys.readouterr().err


def test_it_is_one_of_the_commands(shared: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert stratalog(["tail", "t", "-n", "1", "--partition", "1", "--cluster", str(shared.file)]) == 0
    assert shown(capsys) == ["b"]
    assert stratalog(["tail", "nobody", "--cluster", str(shared.file)]) == 2

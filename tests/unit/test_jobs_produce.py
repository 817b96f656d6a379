"""Lines to a topic, with the options of kafka-console-producer.sh and of kcat -P."""

from __future__ import annotations

import functools
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster, Report
from stratalog.engine.driver.plain_values import example, from_plain
from stratalog.jobs import produce as producing
from stratalog.jobs.arguments import separator
from stratalog.jobs.ending import Terminated, after_the_work
from stratalog.jobs.produce import main as produce
from stratalog.jobs.tail import main as tail
from stratalog.partitions.errors import (
    InvalidRecordError,
    NoMajorityError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.records import schema_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.jobs_harness import calls, report

TYPES = (
    "n INT, at TIMESTAMP, wall TIMESTAMP_NTZ, day DATE, price DECIMAL(9,2), x DOUBLE, ok BOOLEAN, raw BINARY, "
    "legs ARRAY<STRUCT<gate: STRING>>, seen MAP<STRING, BIGINT>"
)
VALUE = {
    "n": 7,
    "at": "2013-01-02T03:04:05.000006+00:00",
    "wall": "2013-01-02T03:04:05.000",
    "day": "2013-01-02",
    "price": "12.50",
    "x": "NaN",
    "ok": False,
    "raw": {"base64": "/w=="},
    "legs": [{"gate": "A1"}, {"gate": None}],
    "seen": [["a", 1], ["b", None]],
}


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """``t``, with binary records; ``typed``, with integer keys."""
    made = LiveCluster(tmp_path, on_disk=True)
    made.topic("t", partitions=2)
    made.cluster.topics.create("typed", partitions=1, replication_factor=1, key="BIGINT", value=TYPES)
    return made


run = calls(produce)


def given(live: LiveCluster, text: str | bytes) -> str:
    path = live.folder / "lines"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def objects(live: LiveCluster, topic: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert tail([topic, "--start", "earliest", "--format", "json", "--cluster", str(live.file)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_lines_are_values_and_the_last_needs_no_end(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(live, "t", "--input", given(live, b"a\r\n\n\xff b\nlast"), "--json") == 0
    assert report(capsys)["totals"] == {"lines": 4, "batches": 1}
    assert [one["value"] for one in objects(live, "t", capsys)] == ["a", "", {"base64": "/yBi"}, "last"]


def test_keys_come_before_the_separator(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(live, "t", "--input", given(live, "a:1\nb:2:3\na:\n"), "--key-separator", ":", "--batch", "2") == 0
    found = objects(live, "t", capsys)
    assert sorted((one["key"], one["value"]) for one in found) == [("a", ""), ("a", "1"), ("b", "2:3")]
    assert len({one["partition"] for one in found if one["key"] == "a"}) == 1
    assert run(live, "t", "--input", given(live, "a:1\nb"), "--key-separator", ":") == 2
    assert "produce to t: line 2: there is no ':' after a key\n" in capsys.readouterr().err
    argv = ("t", "--input", given(live, "a:1\nb:2\nc"), "--key-separator", ":", "--batch", "2", "--json")
    assert run(live, *argv) == 1
    seen = report(capsys)
    assert seen["failures"][0]["message"].endswith("line 3: there is no ':' after a key")
    assert seen["notes"] == ["lines 1 to 2 were appended, and no later line: next time, give only the later lines"]


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (
            UnknownTopicOrPartitionError("gone"),
            "lines 1 to 2 were appended, and no later line: next time, give only",
        ),
        (
            NoMajorityError("too few voters"),
            "lines 1 to 2 were appended; some of lines 3 to 4 may",
        ),
    ],
)
def test_an_error_after_the_first_batch_leaves_a_report_of_what_was_appended(
    live: LiveCluster,
    error: StratalogError,
    note: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 2 would say that nothing was changed, and the lines would be given again."""
    second_batch_raises(error, monkeypatch)
    assert run(live, "t", "--input", given(live, "a\nb\nc\nd"), "--batch", "2", "--json") == 1
    seen = report(capsys)
    assert (seen["totals"]["lines"], [one["code"] for one in seen["failures"]]) == (2, [error.code])
    assert seen["notes"][0].startswith(note)
    assert sum(row["records"] for row in seen["rows"]) == 2


def second_batch_raises(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls_made = Cluster.produce, iter((None, error))

    def sometimes(*args: Any, **kwargs: Any) -> Report:
        if (failed := next(calls_made)) is not None:
            raise failed
        return real(*args, **kwargs)

    functools.update_wrapper(sometimes, real)
    monkeypatch.setattr(Cluster, "produce", sometimes)


@pytest.mark.parametrize(("signalled", "status"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_a_second_signal_leaves_the_lines_that_were_appended(
    live: LiveCluster,
    signalled: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The advice to run the job again would append lines twice."""
    second_batch_raises(signalled, monkeypatch)
    assert run(live, "t", "--input", given(live, "a\nb\nc\nd"), "--batch", "2") == status
    assert capsys.readouterr().err.startswith(
        "interrupted: lines 1 to 2 were appended; some of lines 3 to 4 may have been appended: "
    )


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
@pytest.mark.parametrize("topic", ["mirror", "__operations"])
def test_a_topic_that_takes_no_lines_is_refused_before_a_line_is_read(
    live: LiveCluster, topic: str, dry_run: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    live.topic("mirror", mirror_source="4L6g3nShT-eMCtK--X86sw/oX3uHkRbTS6eNWJkT0n5kw")
    with live.unchanged():
        assert run(live, topic, "--input", given(live, ""), *dry_run) == 2
    assert f"topic {topic!r}" in capsys.readouterr().err


def test_produce_accepts_the_output_of_tail(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "timestamp": "2013-01-02T03:04:05.000006+00:00",
        "key": 2**60,
        "value": VALUE,
        "headers": [{"key": "h", "value": {"base64": "/w=="}}, {"key": "i", "value": None}],
    }
    text = f"{json.dumps(record)}\n{json.dumps({'value': None})}\n"
    assert run(live, "typed", "--input", given(live, text), "--format", "json") == 0
    first, second = objects(live, "typed", capsys)
    assert first == {"partition": 0, "offset": 0, **record}
    assert (second["key"], second["value"], second["headers"]) == (None, None, [])
    copied = "".join(f"{json.dumps(one)}\n" for one in (first, second))
    assert run(live, "typed", "--input", given(live, copied), "--format", "json") == 0
    assert objects(live, "typed", capsys)[2:] == [{**first, "offset": 2}, {**second, "offset": 3}]


def test_values_of_a_typed_topic_are_json(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(live, "typed", "--input", given(live, '5|{"n": 1}\n'), "--key-separator", "|") == 0
    (found,) = objects(live, "typed", capsys)
    assert (found["key"], found["value"]) == (5, dict.fromkeys(VALUE) | {"n": 1})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"value": {"m": 1}}', "line 1: the topic has no field 'value.m'"),
        ('{"value": {"n": 1.5}}', "value: n: 1.5 is not of type int32"),
        ('{"value": {"n": true}}', "value: n: true is not of type int32"),
        ('{"value": {"at": "yesterday"}}', "value: at: 'yesterday' is not of type timestamp"),
        ('{"value": {"wall": "2013-01-02T03:04:05Z"}}', "is not of type timestamp[us]"),
        ('{"value": {"raw": {"base64": "?"}}}', "value: raw: "),
        ('{"value": {"seen": [1]}}', "value: seen: a map must be an object, or a list of [key, value]"),
        ('{"valeu": 1}', "records have no column 'valeu'; did you mean 'value'?"),
        ("[]", "not an object"),
        ("{", "line 1: "),
        ('{"value": {"n": 4000000000}}', "column 'value' is declared"),
    ],
)
def test_a_line_that_does_not_fit_is_named_and_nothing_is_appended(
    live: LiveCluster, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with live.unchanged():
        assert run(live, "typed", "--input", given(live, line), "--format", "json") == 2
    assert message in capsys.readouterr().err


def test_fields_that_the_type_lacks_are_dropped_and_counted_or_added(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The count is per batch; here a batch has one line."""
    text = '{"value": {"n": 1, "new": "a"}}\n{"value": {"n": 2, "new": "b"}}\n'
    how = ("--format", "json", "--batch", "1", "--on-unknown-field")
    assert run(live, "typed", "--input", given(live, text), *how, "drop") == 0
    seen = capsys.readouterr().out
    assert "dropped_fields 2" in seen
    assert "no field value.new" in seen
    assert run(live, "typed", "--input", given(live, text), *how, "add") == 0
    assert "grew by value.new" in capsys.readouterr().out
    found = [record["value"] for record in objects(live, "typed", capsys)]
    assert found == [
        dict.fromkeys(VALUE) | {"n": n, "new": new} for n, new in ((1, None), (2, None), (1, "a"), (2, "b"))
    ]


def test_with_a_producer_and_a_sequence_a_file_is_appended_once(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = given(live, "".join(f"{number}\n" for number in range(50)))
    once = ("t", "--input", lines, "--producer", "loader", "--sequence", "3", "--batch", "10")
    assert run(live, *once, "--dry-run", "--json") == 0
    assert report(capsys)["totals"] == {"lines": 50, "batches": 0}
    for _ in range(2):
        assert run(live, *once) == 0
    assert len(objects(live, "t", capsys)) == 50
    assert run(live, "t", "--input", given(live, "other\n"), "--producer", "loader", "--sequence", "3") == 1
    assert run(live, "t", "--producer", "loader") == 2


@pytest.mark.slow
def test_typed_lines_are_appended_at_a_pause_and_the_end_on_request(live: LiveCluster) -> None:
    called = [sys.executable, "-m", "stratalog.jobs.produce", "t", "--linger", "50ms", "--json"]
    called += ["--cluster", str(live.file)]
    with subprocess.Popen(called, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write("hello\n")
        process.stdin.flush()
        tailed = Cluster.open(live.file).tail("t", start="earliest", first_poll_s=0.05, idle_timeout_s=60)
        assert next(iter(tailed)).column("value").to_pylist() == [b"hello"]
        process.stdin.write("torn")
        process.stdin.flush()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert json.loads(io.StringIO(out).readlines()[-1])["totals"] == {"lines": 1, "batches": 1}


def test_a_line_of_many_pieces_is_joined_once_and_one_that_is_too_long_is_refused_by_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producing, "_CHUNK", 7)
    monkeypatch.setattr(producing, "_LONGEST", 100)

    def lines(text: bytes) -> list[bytes]:
        reads, writes = os.pipe()
        os.write(writes, text)
        os.close(writes)
        try:
            with after_the_work() as ending:
                return [line for batch in producing.batches(reads, 3, 0.1, ending) for line in batch]
        finally:
            os.close(reads)

    whole = [b"a" * 90, b"", b"b", b"c" * 14, b"d" * 13]
    assert lines(b"\n".join(whole)) == whole
    assert lines(b"\n".join(whole) + b"\n") == whole
    with pytest.raises(InvalidRecordError, match=r"longer than 100 bytes; it begins with b'e{40}'"):
        lines(b"x\n" + b"e" * 120)


def test_a_line_is_read_and_refused_in_time_that_grows_with_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """65,536 pieces of a line of 100 MB without a line end: joining them again for each piece would copy 32 GB."""
    monkeypatch.setattr(producing, "_CHUNK", 16)
    monkeypatch.setattr(producing, "_LONGEST", 65_535 * 16)
    reads, writes = os.pipe()

    def write() -> None:
        with open(writes, "wb") as line:
            line.write(b"e" * 65_536 * 16)

    writer = threading.Thread(target=write)
    writer.start()
    began_s = time.process_time()
    with after_the_work() as ending, pytest.raises(InvalidRecordError, match=r"longer than 1,048,560 bytes"):
        list(producing.batches(reads, 3, 0.1, ending))
    assert time.process_time() - began_s < 2
    writer.join()
    os.close(reads)


@pytest.mark.parametrize(("given", "means"), [("\\t", "\t"), ("\\x1f", "\x1f"), ("\\\\t", "\\t"), ("|", "|")])
def test_a_separator_that_no_shell_can_write_is_written_as_kcat_takes_it(given: str, means: str) -> None:
    assert separator(given) == means


def test_text_for_a_typed_topic_is_refused_with_the_type_and_an_example(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    live.cluster.topics.create("trips", partitions=1, replication_factor=1, value="city STRING, distance DOUBLE")
    assert run(live, "trips", "--input", given(live, "Oslo\n")) == 2
    text = capsys.readouterr().err
    shown = '{"city": "text", "distance": 1.5}'
    assert f"Its type is city STRING, distance DOUBLE: give a value such as {shown}" in text
    assert run(live, "trips", "--input", given(live, shown)) == 0


def test_an_example_is_a_value_of_its_type(live: LiveCluster) -> None:
    for field in schema_of(None, live.cluster.image.topic("typed").value_schema).field("value").type:
        assert from_plain(example(field.type), field.type) is not None


def test_notes_of_a_failure_say_only_what_is_left_to_do(
    live: LiveCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other records under a used sequence are refused, so no note says that some records may have been
    appended.
    """
    named = ("t", "--producer", "p", "--sequence", "0", "--json", "--input")
    assert run(live, *named, given(live, "a\nb\n")) == 0
    capsys.readouterr()
    assert run(live, *named, given(live, "c\nd\n")) == 1
    found = report(capsys)
    assert (found["notes"], found["rows"][0]["outcome"]) == ([], "not appended")

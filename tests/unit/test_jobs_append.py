"""The command line of jobs/append, and its stream, as far as they need no session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog import Report
from stratalog.jobs.append import main as append
from stratalog.jobs.run import Job
from stratalog.jobs.streaming import append_stream, summed
from tests.unit.cluster_harness import LiveCluster

STREAM = ("--stream", "--checkpoint", "c", "--producer", "p")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--producer", ""), "argument --producer: give a name"),
        (("--sequence", "0"), "--sequence needs --producer"),
        (("--producer-epoch", "0"), "--producer-epoch needs --producer"),
        (("--on-changed-replay", "accept"), "--on-changed-replay needs --producer"),
        (("--producer", "p"), "--producer needs --sequence or --stream"),
        (("--stream",), "--stream needs --checkpoint"),
        (("--stream", "--checkpoint", "c"), "--stream needs --producer"),
        (("--checkpoint", "c"), "--checkpoint needs --stream"),
        ((*STREAM, "--sequence", "0"), "--stream and --sequence cannot be used together"),
        ((*STREAM, "--dry-run"), "--stream and --dry-run cannot be used together"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_call_is_found_before_anything_is_opened(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert append(["--cluster", "none.toml", "t", "--input", "in", *argv]) == 2
    assert message in capsys.readouterr().err


class Query:
    """A query that is interrupted; it can be started, and is then its own frame."""

    stopped = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: self

    @property
    def writeStream(self) -> Query:  # noqa: N802 - Spark's name
        return self

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        raise KeyboardInterrupt

    def stop(self) -> None:
        self.stopped = True


def test_an_interrupted_stream_does_not_continue_in_another_users_session() -> None:
    query: Any = Query()
    with pytest.raises(KeyboardInterrupt):
        append_stream(query, "checkpoint", lambda batch, batch_id: Report("append", ()))
    assert query.stopped


def test_the_bad_records_of_a_streams_batches_are_counted_and_reported() -> None:
    bad = {"topic": "t", "partition": 1, "records": 2, "outcome": "bad", "reason": "the key is null"}
    one = Report("append", [bad], totals={"records": 5, "bytes": 9, "bad_records": 2})
    two = Report("append", (), totals={"records": 1, "bytes": 3, "bad_records": 0})
    report = summed([(0, one), (1, two)], [])
    assert [row["bad_records"] for row in report.rows] == [2, 0]
    assert (report.totals["records"], report.totals["bad_records"]) == (6, 2)
    assert report.notes == ["batch 0: 2 bad records of t: the key is null"]
    assert "bad_records" not in summed([(0, Report("append", ()))], []).totals


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_an_input_that_does_not_exist_is_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    for name in ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    live = LiveCluster(tmp_path, on_disk=True)
    live.topic()
    monkeypatch.setattr(Job, "on_spark", None)
    path = tmp_path / "missing.parquet"
    assert append(["t", "--input", f"{scheme}{path}", "--cluster", str(live.file)]) == 2
    assert f"there is no such file or folder: {path}" in capsys.readouterr().err


def test_an_input_without_its_option_is_refused_with_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert append(["t", "x.parquet"]) == 2
    assert "required: --input; did you mean --input x.parquet?" in capsys.readouterr().err

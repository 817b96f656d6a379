"""Every job as users call it: exit status, the report as JSON or as a table, and dry runs that change nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import Cluster
from stratalog.jobs.main import JOBS, job_of
from tests.spark.standalone import spark_submit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

ROOT = Path(__file__).resolve().parents[2]
ROWS = 300
CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "10900",
    "segment.merge.min.files": "2",
    "segment.merge.inline.bytes": "0",  # the job merge has work here
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster of three folders, and a remote one."""

    folder: Path

    @property
    def file(self) -> str:
        return str(self.folder / "cluster.toml")

    def listing(self) -> dict[str, tuple[int, int]]:
        """Every file with its size and modification time."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}

    def call(self, job: str, *argv: str) -> int:
        """The job's exit status, in this process."""
        return int(job_of(job)([*argv, "--cluster", self.file]))


def text(number: int) -> str:
    """Incompressible text, because sizes decide what is merged and tiered."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def make_place(folder: Path) -> Place:
    brokers = ""
    for broker in (1, 2, 3):
        (folder / f"b{broker}").mkdir(parents=True)
        brokers += f'[[brokers]]\nid = {broker}\nrack = "r{broker}"\nlog_dir = "b{broker}"\n'
    (folder / "remote").mkdir()
    (folder / "cluster.toml").write_text(f'[cluster]\nid = "jobs"\nremote = "remote"\nvoters = [1]\n{brokers}')
    for part in range(3):
        (folder / "in").mkdir(exist_ok=True)
        numbers = range(part * 100, part * 100 + 100)
        table = pa.table(
            {"k": [f"k{n % 7}" for n in numbers], "n": list(numbers), "s": [text(n) for n in numbers]}
        )
        pq.write_table(table, folder / "in" / f"{part}.parquet")
    return Place(folder)


@pytest.fixture
def empty(tmp_path: Path) -> Place:
    return make_place(tmp_path / "cluster")


@pytest.fixture(scope="module")
def filled_once(tmp_path_factory: pytest.TempPathFactory, spark: object) -> Place:
    """A tiered topic with appends that can be merged, tiered and dropped; created by the jobs themselves."""
    place = make_place(tmp_path_factory.mktemp("filled") / "cluster")
    configs = [part for pair in CONFIGS.items() for part in ("--config", "=".join(pair))]
    shape = ("--partitions", "2", "--replication-factor", "3", "--key", "STRING", "--value", "n BIGINT, s STRING")
    record = ("t", "--key", "k", "--producer", "p")
    assert place.call("format") == 0
    assert place.call("topics", "create", "t", *shape, *configs) == 0
    for sequence in range(3):
        file = str(place.folder / "in" / f"{sequence}.parquet")
        assert place.call("append", *record, "--input", file, "--sequence", str(sequence)) == 0
    return place


@pytest.fixture
def filled(filled_once: Place, tmp_path: Path) -> Iterator[Place]:
    """A copy that a test may change. Its roots differ from the registered ones, so they are trusted."""
    copy = tmp_path / "cluster"
    shutil.copytree(filled_once.folder, copy)
    place = Place(copy)
    Cluster.open(place.file).brokers.register([1, 2, 3], trust_copy=True).raise_for_failures()
    return place


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The report that ``--json`` has printed."""
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


def submit(place: Place, script: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the job under spark-submit, in the project's root, as its help says. Spark redirects Python's standard
    error to standard output.
    """
    settings = ["--master", "local[1]", f"jobs/{script}.py", *argv, "--cluster", place.file]
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}
    environ["PATH"] = os.pathsep.join([str(Path(sys.prefix, "bin")), environ["PATH"]])
    return subprocess.run(
        [*spark_submit(), *settings],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


# -------------------------------------------------------------------------------- spark-submit


@pytest.mark.long("starts spark-submit")
@pytest.mark.classic("spark-submit starts a session of its own")
def test_a_job_under_spark_submit_works_and_prints_its_report_last(filled: Place) -> None:
    done = submit(filled, "tier", "--topics", "t", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["operation"], report["ok"]) == ("tier", True)
    assert report["totals"]["uploaded_files"] > 0


@pytest.mark.classic("spark-submit starts a session of its own")
def test_a_bad_call_under_spark_submit_is_two_and_one_line(filled: Place) -> None:
    done = submit(filled, "tier", "--topics", "nix")
    messages = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: Using incubator")]
    assert (done.returncode, messages) == (2, [])
    assert done.stdout.splitlines() == [
        "ERROR UNKNOWN_TOPIC_OR_PARTITION: topic 'nix' does not exist, or was deleted"
    ]


# ------------------------------------------------------------------------------------- dry runs

DRY_RUNS = [
    ("topics", "create", "u", "--partitions", "2", "--value", "n INT"),
    ("topics", "alter-configs", "t", "--set", "retention.ms=5"),
    ("topics", "alter-configs", "--cluster-wide", "--unset", "retention.ms"),
    ("topics", "delete", "t"),
    ("topics", "list"),
    ("format",),
    ("brokers", "fence", "2"),
    ("append", "t", "--key", "k"),
    ("replicate",),
    ("merge",),
    ("tier", "--topics", "t"),
    ("retain",),
    ("vacuum",),
    ("bootstrap", "2"),
    ("verify",),
    ("verify", "--discarded"),
    ("heal",),
    ("recover", "t", "--to", "OUT"),
    ("describe",),
    ("offsets", "t"),
    ("read", "t"),
]


@pytest.mark.parametrize("argv", DRY_RUNS, ids=lambda argv: "-".join(argv[:2]))
def test_a_dry_run_changes_nothing(
    filled_once: Place, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    job, *rest = argv
    if job == "append":
        rest += ["--input", str(filled_once.folder / "in")]
    rest = [str(filled_once.folder / "in") if part == "OUT" else part for part in rest]
    before = filled_once.listing()
    assert filled_once.call(job, *rest, "--dry-run", "--json") == 0
    assert filled_once.listing() == before
    report = last_line(capsys)
    assert report["ok"]
    reads_only = job in ("describe", "offsets") or argv[1:] == ("list",)
    assert report["dry_run"] or reads_only


def test_a_dry_run_of_format_writes_nothing_to_an_empty_root(
    empty: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    before = empty.listing()
    assert empty.call("format", "--dry-run", "--json") == 0
    assert {row["plan"] for row in last_line(capsys)["rows"]} == {"format"}
    assert empty.listing() == before


def test_a_dry_run_of_an_append_counts_the_records_of_each_partition(
    filled_once: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ("t", "--input", str(filled_once.folder / "in"), "--key", "k")
    assert filled_once.call("append", *source, "--where", "n < 50", "--dry-run", "--json") == 0
    report = last_line(capsys)
    assert report["totals"]["records"] == sum(row["records"] for row in report["rows"]) == 50


def test_an_append_counts_its_bad_records_and_puts_them_into_their_topic(
    filled: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """128 of 300 numbers fit into a TINYINT; from a frame, and from a stream of its batches."""

    def run(job: str, *argv: str) -> dict[str, Any]:
        assert filled.call(job, *argv, "--json") == 0, capsys.readouterr()
        return last_line(capsys)

    shape = ("--replication-factor", "2", "--partitions", "2")
    run("topics", "create", "small", *shape, "--key", "STRING", "--value", "n TINYINT, s STRING")
    run("topics", "create", "bad", *shape)
    source = ("small", "--input", str(filled.folder / "in"), "--key", "k")
    lane = ("--on-bad-record", "topic", "--bad-record-topic", "bad", "--producer", "p")
    for _ in range(2):
        report = run("append", *source, *lane, "--sequence", "0")
        assert report["totals"]["bad_records"] == 172
        bad = [row for row in report["rows"] if row["outcome"] == "bad"]
        assert sum(row["records"] for row in bad) == 172
        assert {row["reason"] for row in bad} == {"value.n is not of type TINYINT"}
    stream = ("--stream", "--checkpoint", str(filled.folder / "checkpoint"), "--option", "maxFilesPerTrigger=1")
    report = run("append", *source, *lane, *stream)
    assert sorted(row["bad_records"] for row in report["rows"]) == [
        0,
        72,
        100,
    ]  # for any order in which Spark lists files
    assert report["totals"]["bad_records"] == 172
    for topic, count in (("small", 2 * 128), ("bad", 2 * 172)):
        assert run("read", topic, "--count")["totals"]["records"] == count


# ---------------------------------------------------------------------------- from end to end


def test_jobs_manage_a_topic_for_all_of_its_life(filled: Place, capsys: pytest.CaptureFixture[str]) -> None:
    def run(job: str, *argv: str) -> dict[str, Any]:
        assert filled.call(job, *argv, "--json") == 0, capsys.readouterr()
        return last_line(capsys)

    assert run("merge")["totals"]["segments"] == 0, "tier writes a segment from few files"
    run("replicate")
    assert run("tier")["totals"]["uploaded_files"] > 0
    run("retain")
    assert run("retain")["totals"]["deleted_bytes"] > 0
    local = run("offsets", "t", "--spec", "earliest-local")
    assert min(row["offset"] for row in local["rows"]) > 0
    shutil.rmtree(filled.folder / "b3")
    (filled.folder / "b3").mkdir()
    assert all("3" in row["isr"] for row in run("bootstrap", "3")["rows"])
    assert run("verify", "--deep")["totals"]["findings"] == 0
    assert run("describe")["totals"]["replicas"] == 6
    assert [row["state"] for row in run("brokers", "list")["rows"]] == ["ok"] * 3
    assert run("read", "t", "--count")["totals"]["records"] == ROWS
    out = filled.folder / "out"
    assert run("read", "t", "--output", str(out))["totals"]["records"] == ROWS
    values = pq.read_table(out)["value"].combine_chunks()
    assert sorted(values.field("n").to_pylist()) == [*range(ROWS)]
    assert run("topics", "alter-configs", "t", "--set", "retention.ms=7")["ok"]
    assert "retention.ms=7" in run("topics", "list")["rows"][0]["configs"]
    run("topics", "delete", "t", "--yes")
    assert run("topics", "list")["rows"] == []


def test_a_stream_appends_each_batch_once(filled: Place, capsys: pytest.CaptureFixture[str]) -> None:
    source = (
        "t",
        "--input",
        str(filled.folder / "in"),
        "--option",
        "maxFilesPerTrigger=1",
        "--key",
        "k",
    )
    checkpoint = filled.folder / "checkpoint"
    stream = (*source, "--stream", "--checkpoint", str(checkpoint), "--producer", "stream", "--json")
    assert filled.call("append", *stream) == 0
    assert [row["records"] for row in last_line(capsys)["rows"]] == [100, 100, 100]
    assert filled.call("append", *stream) == 0
    assert last_line(capsys)["rows"] == []
    for commit in checkpoint.glob("commits/*2*"):  # as if the run had died before it was written
        commit.unlink()
    for commit in checkpoint.glob("commits/.*2*"):
        commit.unlink(missing_ok=True)
    assert filled.call("append", *stream) == 0
    assert [(row["batch"], row["files"]) for row in last_line(capsys)["rows"]] == [(2, 0)]
    assert filled.call("read", "t", "--count", "--json") == 0
    assert last_line(capsys)["totals"]["records"] == 2 * ROWS


def test_a_batch_that_cannot_be_appended_ends_the_stream(
    filled: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (
        "t",
        "--input",
        str(filled.folder / "in"),
        "--partition",
        "9",
        "--select",
        "k",
        "--select",
    )
    argv = (*source, "struct(n, s) AS v", "--value", "v", "--stream", "--producer", "x", "--checkpoint")
    assert filled.call("append", *argv, str(filled.folder / "c")) == 2
    found = capsys.readouterr().err
    assert "a row's partition is 9" in found
    assert len(found.splitlines()) == 1


def test_people_get_a_table_of_what_was_read(filled_once: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert filled_once.call("read", "t", "--limit", "2", "--where", "value.n >= 200") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("read: done, records 2")
    assert lines[1].split() == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert '{"n":2' in lines[3].replace(" ", "")


# ------------------------------------------------------------------------------ runner threads


THREADS = [
    ("append", "t", "--key", "k", "--producer", "p", "--sequence", "3", "--input", "IN"),
    *(
        (job,)
        for job in (
            "maintain",
            "replicate",
            "merge",
            "compact",
            "tier",
            "retain",
            "snapshot",
            "vacuum",
            "verify",
            "heal",
        )
    ),
    ("bootstrap", "3"),
    ("erase", "plain", "--yes"),
    ("recover", "t", "--to", "IN"),
    ("elect",),
    ("reassign", "--topics", "t", "--remove", "3"),
    ("read", "t", "--count"),
]


@pytest.mark.classic("it asks the JVM which jobs were started")
def test_no_job_hands_tasks_to_executors_with_runner_threads(filled: Place, spark: SparkSession) -> None:
    """A session exists. Spark reads the input of an append, and scans, in the JVM alone. Jobs that compute in the
    driver anyway have no such option. A mirror needs a Kafka; tests/bridges/test_mirror_in_bulk.py tests its
    tasks.
    """
    mains = {name: job_of(name) for name in JOBS}
    with_tasks = {name for name, main in mains.items() if main.runs != "driver"}
    assert {argv[0] for argv in THREADS} == with_tasks - {"mirror"}

    def started(job: str, *argv: str) -> bool:
        """Whether any thread has started a Spark job."""
        tracker = spark.sparkContext.statusTracker()
        before = set(tracker.getJobIdsForGroup(None))
        assert filled.call(job, *argv) == 0
        return not before.issuperset(tracker.getJobIdsForGroup(None))

    assert started("verify")
    assert filled.call("topics", "create", "plain", "--partitions", "1", "--replication-factor", "2") == 0
    for job, *argv in THREADS:
        given = [str(filled.folder / "in") if part == "IN" else part for part in argv]
        assert started(job, *given, "--runner", "threads") == (job in ("append", "read")), job


# -------------------------------------------------------------------------------- exit status


def test_a_broken_replica_makes_verify_fail(filled: Place, capsys: pytest.CaptureFixture[str]) -> None:
    victim = next(path for path in sorted((filled.folder / "b2").rglob("*.parquet")))
    data = bytearray(victim.read_bytes())
    data[len(data) // 3] ^= 0xFF
    victim.chmod(0o644)
    victim.write_bytes(bytes(data))
    assert filled.call("verify", "--deep", "--json") == 1
    found = capsys.readouterr()
    assert json.loads(found.out.splitlines()[-1])["failures"]
    assert found.err.startswith("FAILED t-")
    assert filled.call("verify", "--deep") == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_cluster_that_cannot_be_reached_is_a_failure(filled: Place, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.move(filled.folder / "b3", filled.folder / "elsewhere")
    assert filled.call("describe") == 1
    assert "FAILED" in capsys.readouterr().out


BAD_CALLS = [
    (("describe", "--topics", "nix"), "UNKNOWN_TOPIC_OR_PARTITION"),
    (("replicate", "--topics", "t,nix"), "UNKNOWN_TOPIC_OR_PARTITION"),
    (("topics", "create", "u", "--config", "retention.mss=1"), "did you mean 'retention.ms'"),
    (("topics", "create", "u", "--replication-factor", "4"), "INVALID_REPLICATION_FACTOR"),
    (("topics", "create", "t"), "TOPIC_ALREADY_EXISTS"),
    (("topics", "create", "u", "--value", "n INTT"), "does not declare a type that a topic can have"),
    (("topics", "alter-configs", "t", "--set", "segment.bytes=x"), "INVALID_CONFIG"),
    (("topics", "alter-configs", "t", "--set", "segment.ms=1", "--unset", "segment.ms"), "set and unset"),
    (("append", "t", "--input", "nix"), "there is no such file or folder"),
    (("append", "t", "--input", "IN", "--format", "nix"), "DATA_SOURCE_NOT_FOUND"),
    (("read", "t", "--output", "OUT", "--format", "nix"), "DATA_SOURCE_NOT_FOUND"),
    (("append", "t", "--input", "IN", "--key", "nix", "--on-unknown-field", "drop"), "column 'nix'"),
    (
        ("append", "t", "--input", "IN", "--key", "k ||", "--on-unknown-field", "drop"),
        "PARSE_SYNTAX_ERROR",
    ),
    (
        ("append", "t", "--input", "IN", "--select", "k", "--on-unknown-field", "drop"),
        "lacks the declared value columns",
    ),
    (
        ("append", "t", "--input", "IN", "--partition", "n", "--on-unknown-field", "drop"),
        "but the topic has partitions 0 to 1",
    ),
    (("append", "t", "--input", "IN", "--stream"), "--checkpoint"),
    (("append", "nix", "--input", "IN"), "UNKNOWN_TOPIC_OR_PARTITION"),
    (("read", "t", "--start", "999999"), "OFFSET_OUT_OF_RANGE"),
    (("read", "t", "--partitions", "7"), "UNKNOWN_TOPIC_OR_PARTITION"),
    (("bootstrap", "9"), "BROKER_ID_NOT_REGISTERED"),
    (("brokers", "add", "9"), "BROKER_ID_NOT_REGISTERED"),
    (("verify", "--discarded", "--deep"), "cannot be used together"),
    (("verify", "--discarded", "--deep"), "cannot be used together"),
    (("recover", "t", "--to", "nix"), "LOG_DIR_NOT_FOUND"),
    (("recover", "t", "--to", "gopher://nix"), "UNSUPPORTED_STORE"),
]


@pytest.mark.parametrize(("argv", "says"), BAD_CALLS, ids=lambda value: "-".join(value[:2]) if len(value) else "")
def test_a_bad_call_says_what_is_wrong_and_changes_nothing(
    filled_once: Place, argv: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job, *rest = [str(filled_once.folder / "in") if part == "IN" else part for part in argv]
    before = filled_once.listing()
    assert filled_once.call(job, *rest) == 2
    found = capsys.readouterr()
    assert says in found.err
    assert found.err.startswith("ERROR ")
    assert len(found.err.splitlines()) == 1
    assert found.out == ""
    assert filled_once.listing() == before


def test_a_missing_log_dir_is_a_bad_call(empty: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (empty.folder / "b2").rmdir()
    assert empty.call("format") == 2
    assert "b2" in capsys.readouterr().err
    assert not (empty.folder / "b1" / "broker.json").exists()

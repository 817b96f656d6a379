"""Executors that share only buckets with the driver: all jobs and streams, with the wheel and with
``--py-files``."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.jobs.main import JOBS
from tests.s3_server import S3Endpoint
from tests.spark.nothing_shared import KEY, VALUE, Site, site
from tests.spark.standalone import HOSTS, ROOT
from tests.spark.streams import limits
from tests.spark.waiting import wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.nightly,
    pytest.mark.classic("its drivers have sessions of their own"),
]

CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "40000",
    "segment.merge.min.files": "2",
    "segment.merge.inline.bytes": "0",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
PART_ROWS = 11_000
"""More rows than the driver appends by itself."""
ROWS = 3 * PART_ROWS

ON_THE_DRIVER = {"health", "metrics", "report", "history", "policy", "protect", "produce"} | {
    *("mirror", "compare", "export", "serve", "kafka_tier"),
}
"""Jobs without tasks; and ``mirror``, whose tasks need Kafka brokers."""


@pytest.fixture(scope="module", params=["wheel", "py-files"])
def place(
    request: pytest.FixtureRequest, s3_endpoint: S3Endpoint, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A site with inputs in its bucket, and a formatted cluster."""
    folder = tmp_path_factory.mktemp(request.param)
    with site(folder, s3_endpoint, wheel, request.param) as started:
        for part in range(3):
            numbers = range(part * PART_ROWS, (part + 1) * PART_ROWS)
            table = pa.table({"k": [f"k{n % 7}" for n in numbers], "n": list(numbers)})
            pq.write_table(table, file := io.BytesIO())
            assert started.bucket.create(f"in/{part}.parquet", file.getvalue())
        started.write_cluster_file()
        assert started.run("format")["ok"]
        yield started


def make_topic(place: Site, name: str, partitions: int = 2) -> None:
    place.cluster.topics.create(
        name, partitions=partitions, replication_factor=2, key=KEY, value=VALUE, configs=CONFIGS
    )


def numbers_in(place: Site, topic: str) -> Counter[int]:
    """The records of a topic with their counts, read here."""
    found: Counter[int] = Counter()
    cluster = place.cluster
    for partition in range(len(cluster.image.topic(topic).partitions)):
        offset = 0
        while (records := cluster.fetch(topic, partition, offset).records).num_rows:
            found.update(records.column("value").combine_chunks().field("n").to_pylist())
            offset = records.column("offset")[-1].as_py() + 1
    return found


@pytest.mark.long("starts executors on a standalone cluster")
def test_tasks_run_in_a_python_and_a_folder_of_their_own(place: Site) -> None:
    script = place.folder / "where.py"
    shutil.copy(ROOT / "tests/spark/where_tasks_run.py", script)
    text = place.start(script).end()
    messages = [json.loads(line.removeprefix("TASK ")) for line in text.splitlines() if line.startswith("TASK ")]
    assert {task["worker"] for task in messages} == set(HOSTS)
    for task in messages:
        own = place.folder.parent / task["worker"]
        assert task["prefix"] == str(own / "python")
        assert Path(task["folder"]).is_relative_to(place.folder.parent / f"worker-{task['worker']}")
        assert ROOT not in map(Path, task["path"])
        there = own if place.zip is None else place.folder.parent / f"worker-{task['worker']}"
        assert Path(task["folder"], task["stratalog"]).is_relative_to(there)


@pytest.mark.long("runs every job on a standalone cluster")
def test_every_job_does_its_work(place: Site) -> None:
    """In the order of a cluster's life; each job's report is checked."""
    uri, done = place.bucket.uri_of, {"format"}

    def run(*calls: tuple[str, ...]) -> list[dict[str, Any]]:
        done.update(call[0] for call in calls)
        return [{**report["totals"], "rows": report["rows"]} for report in place.run_in_turn(*calls)]

    configs = [part for pair in CONFIGS.items() for part in ("--config", "=".join(pair))]
    shape = ("--partitions", "2", "--replication-factor", "2", "--key", "STRING", "--value", "n BIGINT")
    loader = ("append", "t", "--key", "k", "--producer", "p", "--acks", "leader")
    topic = ("--topics", "t")
    created, *appended = run(
        ("topics", "create", "t", *shape, *configs),
        *((*loader, "--input", uri(f"in/{n}.parquet"), "--sequence", str(n)) for n in range(3)),
    )
    assert created["rows"]
    assert [one["records"] for one in appended] == [PART_ROWS] * 3

    copied, merged, again, tiered, _, dropped, snapshots, verified, *_ = run(
        ("replicate",),
        ("merge",),
        ("replicate",),
        ("tier",),
        ("retain",),
        ("retain",),
        ("snapshot", "--by-hand"),
        ("verify", "--deep"),
        ("vacuum",),
        ("heal", *topic),
        ("compact",),
        ("maintain", "--once"),
    )
    assert min(copied["copied_bytes"], merged["segments"], again["copied_bytes"]) > 0
    assert min(tiered["uploaded_files"], dropped["deleted_bytes"], snapshots["made"]) > 0
    assert verified["findings"] == 0

    described, offsets, counted, written, *_ = run(
        ("describe",),
        ("offsets", "t", "--spec", "earliest-local"),
        ("read", "t", "--count"),
        ("read", "t", "--output", uri("out")),
        ("tail", "t", "-n", "3"),
        ("groups", "list"),
        ("transactions", "list"),
        ("elect",),
        ("reassign", *topic, "--replication-factor", "3"),
        ("replicate",),
        ("brokers", "fence", "3"),
        ("brokers", "unfence", "3"),
        ("topics", "create", "u", "--partitions", "1", "--replication-factor", "2"),
        ("erase", "u", "--yes"),
    )
    assert described["replicas"] >= 4
    assert all(row["offset"] > 0 for row in offsets["rows"])
    assert counted["records"] == written["records"] == ROWS
    assert any(stored.name.endswith(".parquet") for stored in place.bucket.list("out/"))

    lost = place.cluster.stores[3]
    lost.delete([stored.name for stored in lost.list("")])
    back, *_, drilled, packed, checked = run(
        ("bootstrap", "3"),
        ("quorum", "replace-voter", "3"),
        ("delete_records", "t", "--before", "0:5", "--yes"),
        ("recover", "t", "--to", uri("recovered")),
        ("restore", "--drill", "--deep"),
        ("package", "--to", str(place.folder / "again.zip")),
        ("check_store", uri("checked"), "--endpoint-url", place.endpoint.url),
    )
    assert back["copied_bytes"] > 0
    assert drilled["rows"]
    assert packed["rows"]
    assert checked["rows"]
    assert done == set(JOBS) - ON_THE_DRIVER


@pytest.mark.long("Spark takes its time to see that a worker is gone")
@limits
def test_a_stream_whose_worker_is_killed_copies_every_record_once(place: Site) -> None:
    """kill -9 of a worker and its executor between the beginning and the end of a batch. The other worker
    continues, and so does the stream: into a topic from files, and out of it into another one."""
    make_topic(place, "arrived")
    make_topic(place, "copied")
    uri = place.bucket.uri_of
    into = ("arrived", "--input", uri("in"), "--option", "maxFilesPerTrigger=1", "--key", "k")
    out_of = (
        "copied",
        "--input",
        "arrived",
        "--format",
        "stratalog",
        "--key",
        "key",
        "--value",
        "value",
    )
    out_of += ("--option", "startingOffsets=earliest", "--option", "maxRowsPerTrigger=4000")
    for way, argv in (("into", into), ("out-of", out_of)):
        stream = (*argv, "--stream", "--checkpoint", uri(f"checkpoint-{way}"), "--producer", way, "--json")
        run = place.start("append", *stream)
        amid = wait_for(f"a batch of {way}", amid_a_batch(place, f"checkpoint-{way}", 1), [run.process])
        assert place.spark.kill_worker(HOSTS[0] if way == "into" else HOSTS[1]) > 0
        report = run.report()
        assert report["totals"]["batches"] > amid
        assert sum(row["records"] for row in report["rows"]) == ROWS
        place.spark.start_workers()
    assert numbers_in(place, "copied") == numbers_in(place, "arrived") == Counter(range(ROWS))


def amid_a_batch(place: Site, checkpoint: str, least: int) -> Callable[[], int | None]:
    """The number of a batch, at least ``least``, that has begun and not ended."""

    def look() -> int | None:
        begun, ended = (
            {name(one.name) for one in place.bucket.list(f"{checkpoint}/{part}/")}
            for part in ("offsets", "commits")
        )
        return max((batch for batch in begun - ended if batch >= least), default=None)

    def name(path: str) -> int:
        text = path.rpartition("/")[2]
        return int(text) if text.isdecimal() else -1

    return look


@pytest.mark.long("Spark takes its time to see that a worker is gone")
def test_an_append_whose_worker_is_killed_ends_as_if_nothing_had_happened(place: Site) -> None:
    """kill -9 of a worker and its executor when only some of its files exist. (``test_faults`` kills executors of
    every job, before and after each file.)"""
    partitions = 32
    make_topic(place, "killed", partitions)
    cluster = place.cluster
    topic_id = cluster.image.topic("killed").topic_id

    def files() -> int:
        """The files in all logs of the topic."""
        stored = (one.name for store in cluster.stores.values() for one in store.list(""))
        return sum(topic_id in name and name.endswith(".parquet") for name in stored)

    source = ("killed", "--input", place.bucket.uri_of("in"), "--acks", "leader", "--json")
    named = ("--key", "k", "--partition", f"n % {partitions}", "--producer", "p", "--sequence", "0")
    run = place.start("append", *source, *named)
    wait_for("a file", lambda: files() > 0, [run.process])
    assert place.spark.kill_worker(HOSTS[0]) > 0
    assert files() < partitions
    assert run.report()["totals"]["records"] == ROWS
    place.spark.start_workers()
    assert files() == partitions
    assert numbers_in(place, "killed") == Counter()  # until followers have it
    place.cluster.replicate("killed").raise_for_failures()
    assert numbers_in(place, "killed") == Counter(range(ROWS))
    assert place.cluster.verify("killed", deep=True).ok

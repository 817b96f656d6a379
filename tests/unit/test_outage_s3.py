"""The remote tier is a real S3 server behind a proxy that spoils requests: throttled, slow, full, torn, answers
lost after success, stopped and started again.

After each fault the remote table and the folder agree exactly, as seen past the proxy; every record exists once;
and the copies that were delayed are complete.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from bench.s3_server import credentials, running_server
from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.engine.reading.bounds import Bound
from stratalog.partitions import paths
from stratalog.partitions.errors import StorageError, StoreTimeoutError, StratalogError
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.store import Store, StoreOptions, open_store, s3_session
from stratalog.tiering import delta_options
from stratalog.tiering.remote_file import remote_file
from stratalog.tiering.remote_log import RemoteLog
from tests.ports import in_turn, ports_of
from tests.s3_proxy import (
    Passing,
    S3Proxy,
    Spoil,
    answer_lost,
    answer_torn,
    busy,
    full,
    never,
    refused,
    reset,
    running_proxy,
)
from tests.s3_server import SECRET_KEY, S3Endpoint
from tests.unit.harness import batch
from tests.unit.remote_folder import assert_table_and_folder_agree

pytestmark = pytest.mark.s3

TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1",
    "retention.ms": "-1",
    "local.retention.bytes": "0",
    "file.delete.delay.ms": "0",
    "compression.type": "uncompressed",
}
SEGMENT = r"/\d+/\d{20}.*\.parquet"
LOG_ENTRY = r"/_delta_log/\d{20}\.json"
PART_BYTES = 5 * 1024 * 1024


@dataclass
class Behind:
    """A cluster of one broker on a folder, whose remote tier is behind a proxy."""

    file: Path
    cluster: Cluster
    proxy: S3Proxy
    endpoint: S3Endpoint
    prefix: str

    @property
    def direct(self) -> Store:
        """The remote tier, past the proxy."""
        return open_store(f"s3://{self.endpoint.bucket}/{self.prefix}", self.options)

    @property
    def options(self) -> StoreOptions:
        """The options that reach it past the proxy."""
        return StoreOptions(endpoint_url=self.proxy.server_url, region=self.endpoint.region)

    def folder(self, topic: str = "t") -> str:
        return paths.topic_folder(topic, self.cluster.image.topic(topic).topic_id)

    def fill(self, *values: str, topic: str = "t", partition: int = 0) -> None:
        """Append each value separately."""
        for value in values:
            self.cluster.append_batches(topic, {partition: [batch([value])]}).raise_for_failures()

    def tiered(self, topic: str = "t", partitions: int = 1, **configs: str) -> None:
        given = {key.replace("_", "."): value for key, value in configs.items()}
        self.cluster.topics.create(topic, partitions=partitions, replication_factor=1, configs=TIERED | given)

    def reached_by(self, proxy: S3Proxy) -> Behind:
        """The same cluster through another proxy, by another driver."""
        self.file.write_text(self.file.read_text().replace(self.proxy.url, proxy.url))
        return replace(self, cluster=Cluster.open(self.file), proxy=proxy)

    def in_turn(self) -> Cluster:
        """Another driver, which works serially."""
        return in_turn(Cluster.open(self.file))

    def remote_log(self, topic: str = "t") -> RemoteLog:
        """The remote log by the table, past the proxy."""
        uri = f"s3://{self.endpoint.bucket}/{self.prefix}/{self.folder(topic)}"
        table = ports_of(self.cluster).storage.remote_table(self.cluster.image.topic(topic))
        return table._fold(DeltaTable(uri, storage_options=delta_options.storage_options(uri, self.options)))

    def remote_values(self, topic: str = "t", partition: int = 0) -> list[str]:
        """The content of a partition's remote log, read past the proxy; its offsets must be contiguous."""
        rows: list[tuple[int, bytes]] = []
        for segment in self.remote_log(topic).of_partition(partition):
            file = remote_file(self.folder(topic), segment)
            for found in read_batches(
                self.direct, file, segment.base_offset, segment.next_offset, ["offset", "value"]
            ):
                rows += zip(found.column("offset").to_pylist(), found.column("value").to_pylist(), strict=True)
        assert [offset for offset, _ in rows] == list(range(len(rows)))
        return [value[:1].decode() for _, value in rows]

    def check(self, values: str, topic: str = "t") -> None:
        """Check that everything is remote, once, and that nothing else is; that the broker drops its files; and
        that the records can be read.
        """
        assert "".join(self.remote_values(topic)) == values
        assert_table_and_folder_agree(self.direct, self.folder(topic), self.options)
        for _ in range(2):
            self.cluster.retain().raise_for_failures()
        self.cluster.verify(deep=True).raise_for_failures()
        assert self.planned(None) == len(values)

    def planned(self, start: Bound, topic: str = "t") -> int:
        """The number of records that a read would get."""
        return sum(part.end - part.start for part in self.cluster.plan_read(topic, start))


@pytest.fixture
def proxy(s3_endpoint: S3Endpoint) -> Iterator[S3Proxy]:
    with running_proxy(s3_endpoint.url) as running:
        yield running


def cluster_behind(proxy: S3Proxy, endpoint: S3Endpoint, folder: Path, prefix: str, options: str = "") -> Behind:
    """A new cluster whose remote tier answers within a second, or not at all."""
    file = folder / "cluster.toml"
    (folder / "b1").mkdir()
    file.write_text(
        f'[cluster]\nid = "c"\nremote = "s3://{endpoint.bucket}/{prefix}"\nvoters = [1]\n'
        '[[brokers]]\nid = 1\nlog_dir = "b1"\n'
        f'[s3]\nendpoint_url = "{proxy.url}"\nregion = "{endpoint.region}"\nretries = 1\ntimeout_s = 1\n'
        f"part_bytes = {PART_BYTES}\n{options}"
    )
    return Behind(file, Cluster.format(file), proxy, endpoint, prefix)


@pytest.fixture
def behind(proxy: S3Proxy, s3_endpoint: S3Endpoint, tmp_path: Path, request: pytest.FixtureRequest) -> Behind:
    return cluster_behind(proxy, s3_endpoint, tmp_path, tmp_path.name)


def codes(report: Report) -> set[str]:
    return {failure.code for failure in report.failures}


def row(report: Report, **where: object) -> dict[str, object]:
    (found,) = (dict(row) for row in report.rows if all(row[key] == value for key, value in where.items()))
    return found


# ------------------------------------------------------------------------------ it passes by itself


@pytest.mark.long("waits for the time-outs of a server that is away")
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(3))
def test_faults_that_pass_cost_no_record_and_make_none_twice(behind: Behind, seed: int) -> None:
    """Every third request is refused, reset, torn or carried out without an answer; runs follow each other until
    everything is uploaded.
    """
    behind.tiered()
    behind.fill("a", "b", "c")
    behind.proxy.spoil_some(seed, [busy, reset, answer_lost, answer_torn, refused(500, "InternalError")], 0.35)
    for _ in range(10):
        if behind.cluster.tier(check=False).ok:
            break
    behind.fill("d", "e")
    for _ in range(10):
        if behind.cluster.tier(check=False).ok:
            break
    else:
        pytest.fail("it does not get through")
    behind.proxy.repair()
    behind.check("abcde")


LOST = {
    "segment": (SEGMENT, "a"),
    "large segment": (SEGMENT, "a" * (PART_BYTES + 1000)),
    "the table's first entry": (r"/_delta_log/0{20}\.json", "a"),
    "commit": (r"/_delta_log/0{19}1\.json", "a"),
    "restore point": ("/_clusters/", "a"),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("address", "value"), LOST.values(), ids=LOST)
def test_an_answer_that_is_lost_after_success_costs_no_second_object(
    behind: Behind, address: str, value: str
) -> None:
    """This is tested for each kind of PUT. The table's own commit is looked up in the table: it exists, once."""
    behind.tiered()
    behind.fill(value, "b")
    behind.proxy.spoil(answer_lost, "PUT", address, times=1)
    report = behind.cluster.tier()
    assert codes(report) <= {"OUTCOME_UNKNOWN"}
    assert behind.proxy.came("PUT", address), "the fault has struck"
    behind.cluster.tier().raise_for_failures()
    assert behind.remote_log().version == 1, "one commit, however often it was asked for"
    behind.check("ab")


def test_the_answer_to_a_completed_multipart_upload_may_be_lost(
    proxy: S3Proxy, s3_endpoint: S3Endpoint, tmp_path: Path
) -> None:
    behind = cluster_behind(proxy, s3_endpoint, tmp_path, tmp_path.name, "exclusive_multipart = true\n")
    behind.tiered()
    behind.fill("a" * (2 * PART_BYTES), "b")
    complete = rf"{SEGMENT}\?uploadId="
    proxy.spoil(answer_lost, "POST", complete, times=1)
    behind.cluster.tier()
    behind.cluster.tier().raise_for_failures()
    assert proxy.came("POST", complete), "the fault has struck"
    behind.check("ab")


# ----------------------------------------------------------------------------------- it stays away

ANY = "PUT|POST|GET|HEAD|DELETE"
DENIED = refused(403, "AccessDenied")
STAYS = {
    "throttled": (busy, ANY, ".", "KAFKA_STORAGE_ERROR", "SlowDown|503"),
    "slow": (never, ANY, ".", "KAFKA_STORAGE_ERROR|REQUEST_TIMED_OUT", "timed? ?out|no answer"),
    "reset": (reset, ANY, ".", "KAFKA_STORAGE_ERROR|BROKER_NOT_AVAILABLE", "(cannot read the table|list) s3://"),
    "torn": (answer_torn, "GET", ".", "KAFKA_STORAGE_ERROR|OUTCOME_UNKNOWN", "(cannot read the table|list) s3://"),
    "full": (full, "PUT|POST", ".", "KAFKA_STORAGE_ERROR", "QuotaExceeded"),
    "out of space": (refused(507, "InsufficientStorage"), "PUT|POST", ".", "OUTCOME_UNKNOWN", "Insufficient"),
    "takes no segments": (DENIED, "PUT", SEGMENT, "CLUSTER_AUTHORIZATION_FAILED", "AccessDenied"),
    "takes no commits": (
        DENIED,
        "PUT",
        LOG_ENTRY,
        "CLUSTER_AUTHORIZATION_FAILED",
        "lacked the necessary privileges",
    ),
    "answers no uploads": (never, "PUT", SEGMENT, "OUTCOME_UNKNOWN", "read before you retry"),
    "loses every answer": (answer_lost, "PUT", ".", "OUTCOME_UNKNOWN", "read before you retry"),
}


@pytest.mark.long("waits for the time-outs of a server that is away")
@pytest.mark.sample(1)
@pytest.mark.parametrize(("spoil", "methods", "address", "expected", "message"), STAYS.values(), ids=STAYS)
def test_while_it_stays_away_everything_local_continues_and_afterwards_nothing_is_missing(
    behind: Behind, spoil: Spoil, methods: str, address: str, expected: str, message: str
) -> None:
    """Appends and local reads continue; no local file is deleted before it is remote; the backlog is visible; each
    failure has its cause; afterwards the backlog drains.
    """
    behind.tiered()
    behind.fill("a", "b")
    behind.cluster.tier().raise_for_failures()
    behind.proxy.spoil(spoil, methods, address)
    behind.fill("c", "d", "e")
    report = behind.cluster.tier(check=False)
    assert [f"{f.item}: {f.code}" for f in report.failures if not re.fullmatch(expected, f.code)] == []
    messages = [f for f in report.failures if f.item.startswith("t")]
    assert len(messages) == 1, messages
    assert re.search(message, messages[0].message), messages[0].message
    assert len(messages[0].message) < 700
    backlog = row(report, topic="t")
    assert (backlog["attempts"], backlog["remote_end"]) == (1, 2)
    assert int(str(backlog["backlog_bytes"])) > 0
    described = row(behind.cluster.describe(), topic="t")
    assert int(str(described["copy_lag_bytes"])) > 0
    assert (described["copy_error"], described["copy_attempts"]) == (messages[0].code, 1)
    behind.cluster.retain(check=False)
    assert behind.planned(2) == 3, "what is not remote is on the broker"
    behind.cluster.merge(check=False)
    behind.cluster.replicate(check=False)
    behind.proxy.repair()
    report = behind.cluster.tier().raise_for_failures()
    assert (row(report)["backlog_bytes"], row(report)["attempts"]) == (0, 0)
    behind.check("abcde")


@pytest.mark.long("waits for the time-outs of a server that is away")
def test_if_a_remote_is_away_the_error_names_the_tier_and_local_reads_continue(behind: Behind) -> None:
    behind.tiered()
    behind.fill("a", "b", "c")
    behind.cluster.tier().raise_for_failures()
    for _ in range(2):
        behind.cluster.retain().raise_for_failures()
    behind.fill("d")
    behind.proxy.spoil(never, ".*", ".")
    before = len(behind.proxy.seen)
    assert behind.planned(OffsetSpec.EARLIEST_LOCAL) == 2
    assert behind.cluster.fetch("t", 0, 2).next_offset == 4
    assert len(behind.proxy.seen) == before, "not even asked"
    with pytest.raises(StorageError, match=rf"topic 't': this read needs the remote tier.*{behind.prefix}"):
        behind.planned(None)
    with pytest.raises(StoreTimeoutError, match="t-0: the remote tier did not answer within 1 s"):
        behind.cluster.fetch("t", 0, 0, timeout_s=1)
    with pytest.raises(StorageError, match=rf"'t' was not deleted.*{behind.prefix}.*Try again when"):
        behind.cluster.topics.delete("t")
    behind.proxy.repair()
    assert behind.planned(None) == 4


def test_one_bad_partition_stops_no_other_and_is_named(behind: Behind) -> None:
    behind.tiered(partitions=8)
    for partition in range(8):
        behind.fill("a", partition=partition)
    behind.proxy.spoil(refused(403, "AccessDenied"), "PUT", r"/5/\d{20}.*\.parquet")
    report = behind.cluster.tier(check=False)
    assert [failure.item for failure in report.failures] == ["t-5"]
    assert sorted(behind.remote_log().segments) == [0, 1, 2, 3, 4, 6, 7]
    behind.proxy.repair()
    behind.cluster.tier().raise_for_failures()
    assert sorted(behind.remote_log().segments) == list(range(8))
    assert_table_and_folder_agree(behind.direct, behind.folder(), behind.options)


def test_after_an_outage_the_earliest_goes_first_and_fresh_partitions_take_turns(behind: Behind) -> None:
    behind.tiered("old")
    behind.fill("a", "b", "c", topic="old")
    behind.proxy.spoil(busy, ".*", ".")
    assert not behind.cluster.tier(check=False).ok
    behind.tiered("new")
    behind.fill("a", "b", topic="new")
    behind.proxy.repair()
    behind.proxy.seen.clear()
    behind.in_turn().tier().raise_for_failures()
    order = [
        (found[1], int(found[2]))
        for address in behind.proxy.came("PUT", SEGMENT)
        if (found := re.search(r"/(\w+)-\w+/0/(\d{20})", address))
    ]
    assert order == [("new", 0), ("old", 0), ("new", 1), ("old", 1), ("old", 2)]


@pytest.mark.long("stops and starts a server")
def test_a_server_that_is_stopped_and_started_again_has_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)
    data = tmp_path / "s3"
    data.mkdir()
    with running_server(data) as endpoint, running_proxy(endpoint.url) as proxy:
        behind = cluster_behind(proxy, endpoint, tmp_path, "x")
        behind.tiered()
        behind.fill("a", "b")
        behind.cluster.tier().raise_for_failures()
    with running_proxy("http://127.0.0.1:1") as proxy:
        restarted = behind.reached_by(proxy)
        restarted.fill("c", "d")
        report = restarted.cluster.tier(check=False)
        assert not report.ok
        assert row(report)["remote_end"] == 2
        with running_server(data) as endpoint:
            proxy.server_url = endpoint.url
            restarted.cluster.tier().raise_for_failures()
            restarted.check("abcd")


# ------------------------------------------------------------------------------------- credentials


def test_no_secret_is_in_what_runs_say_and_leave(
    proxy: S3Proxy, s3_endpoint: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Successful runs contain no secret, nor do runs that fail in each way, down to the chained exceptions and
    their attributes; nor does a session token appear that the server echoes, like S3. (For Spark's runs:
    ``tests.spark.test_s3``.)
    """
    behind = cluster_behind(proxy, s3_endpoint, tmp_path, tmp_path.name)
    behind.tiered()
    behind.fill("a")
    messages = [str(behind.cluster.tier()), repr(behind.cluster), repr(ports_of(behind.cluster))]
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG_KEY)
    s3_session._session.cache_clear()  # as in a separate process
    with running_proxy(s3_endpoint.url) as unknown:
        messages += outputs_of_failing_runs(behind.reached_by(unknown))
    monkeypatch.undo()
    s3_session._session.cache_clear()
    assert "403" in "".join(messages)
    assert "ExpiredToken" in "".join(messages)
    messages += [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    messages += [behind.direct.read(stored.name).decode(errors="replace") for stored in behind.direct.walk("")]
    for secret in (SECRET_KEY, WRONG_KEY, TOKEN):
        found = [text for text in messages if secret in text]
        assert [text[max(0, text.index(secret) - 500) :][:1000] for text in found] == []


def outputs_of_failing_runs(behind: Behind) -> list[str]:
    """The output of a driver whose credentials are wrong, and then of one whose server fails."""
    messages: list[str] = []
    for spoil in (None, echo, busy, reset, answer_torn, refused(403, "InvalidAccessKeyId")):
        if spoil is not None:
            behind.proxy.spoil(spoil, ".*", ".")
        behind.fill("b")
        for run in (
            partial(behind.cluster.tier, check=False),
            partial(behind.cluster.retain, check=False),
            partial(behind.cluster.vacuum, check=False),
            behind.cluster.verify,
        ):
            report = run()
            assert not report.ok
            messages += [report.to_json(), str(report), report._repr_html_(), raised(report.raise_for_failures)]
        messages += [raised(lambda: behind.cluster.plan_read("t", OffsetSpec.LAST_TIERED))]
        messages += [raised(lambda: behind.cluster.topics.delete("t"))]
        messages += [raised(lambda: ports_of(behind.cluster).storage.remote_store("").list(""))]
    return messages


WRONG_KEY = "recognisable-wrong-secret-key"
TOKEN = "recognisable-session-token"


def echo(request: Passing) -> None:
    """Answer as S3 answers an expired token: the answer contains the token."""
    body = f"<Error><Code>ExpiredToken</Code><Message>expired</Message><Token-0>{TOKEN}</Token-0></Error>"
    request.answer(400, [("Content-Type", "application/xml")], body.encode())


def raised(call: Callable[[], object]) -> str:
    """All texts of an error and of its causes."""
    with pytest.raises(StratalogError) as caught:
        call()
    texts = traceback.format_exception(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        texts += [repr(error), str(vars(error)), str(error.args)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)

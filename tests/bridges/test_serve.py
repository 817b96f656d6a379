"""librdkafka reads from ``cluster.serve`` the same records at the same offsets as a fetch, from either tier."""

from __future__ import annotations

import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from stratalog.bridges.jobs.serve import main as job
from stratalog.bridges.mirror.mirror import mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.records import HEADERS, TIMESTAMP
from tests.bridges.endpoint_harness import ANYWHERE, TIMEOUT_S, Seen, consumed, consumer, served
from tests.bridges.memory_source import MemorySource
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.test_upkeep_compact import Compacted, fill
from tests.unit.transact_harness import Ledger, put


def fetched(live: LiveCluster, topic: str = "t", partition: int = 0, offset: int = 0) -> Seen:
    """The expected records of a consumer, from a fetch."""
    found: Seen = []
    while True:
        some = live.cluster.fetch(topic, partition, offset)
        micros = some.records.column("timestamp").cast(pa.int64()).to_pylist()
        for row, time in zip(some.records.drop_columns(["timestamp"]).to_pylist(), micros, strict=True):
            headers = [(one["key"], one["value"]) for one in row["headers"] or ()]
            millis = None if time is None else time // 1000
            found.append((row["offset"], millis, row["key"], row["value"], headers))
        if some.next_offset == offset:
            return found
        offset = some.next_offset


def rows(times_us: list[int | None], *, headers: bool = False) -> pa.RecordBatch:
    """Records with and without keys, values and headers."""
    of_row = [[("a", b"1"), ("a", None)], [], None]
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(times_us, pa.int64()).cast(TIMESTAMP),
            "key": pa.array([None if n % 3 == 0 else b"k%d" % n for n in range(len(times_us))], pa.binary()),
            "value": pa.array([None if n % 4 == 1 else b"v%d" % n for n in range(len(times_us))], pa.binary()),
            "headers": pa.array([of_row[n % 3] if headers else None for n in range(len(times_us))], HEADERS),
        }
    )


TIMES: tuple[list[int | None], ...] = (
    [1_000_999, 5_000_000, 2_000_000],
    [None, None, None],
    [None, None, 7_000_001, None, 3_000_000],
    [5_000_000, None, 1_000],
)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.slow
def test_a_consumer_gets_what_a_fetch_gets(times: list[int | None], tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic(partitions=2)
    for headers in (False, True):
        live.cluster.append_batches("t", {0: [rows(times, headers=headers)]}).raise_for_failures()
    live.append({1: ["other"]}).raise_for_failures()
    expected = fetched(live)
    # A record without a time gets that of its append, unless the topic says otherwise.
    with served(live.cluster) as address:
        assert consumed(address) == expected
        assert consumed(address, offset=len(times) + 1) == expected[len(times) + 1 :]
        assert [value for *_, value, _ in consumed(address, partition=1)] == [b"other"]


@pytest.mark.slow
def test_a_consumer_skips_what_a_compaction_has_removed(tmp_path: Path) -> None:
    live = Compacted(tmp_path)
    fill(live, [(key, str(number)) for number, key in enumerate("aababcadae")])
    live.cluster.compact().raise_for_failures()
    with served(live.cluster) as address:
        for start in range(10):
            assert consumed(address, offset=start) == fetched(live, offset=start)
            assert [row[0] for row in consumed(address, offset=start)] == [
                at for at in (4, 5, 7, 8, 9) if at >= start
            ]


@pytest.mark.slow
def test_both_tiers_are_one_log(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.tiered(segment_bytes="1", local_retention_bytes="1", segment_merge_min_files="2")
    live.fill([f"v{number}" for number in range(6)])
    live.cluster.merge().raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    live.fill(["hot"])
    assert live.cluster.fetch("t", 0, 0).remote
    with served(live.cluster) as address:
        assert consumed(address) == fetched(live)
        with consumer(address) as made:
            assert made.get_watermark_offsets(TopicPartition("t", 0), timeout=TIMEOUT_S) == (0, 7)


def test_values_of_types_are_json_and_text_is_text(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.cluster.topics.create("trips", partitions=1, key="STRING", value="city STRING, km DOUBLE, at TIMESTAMP")
    at = datetime(2013, 1, 2, 3, 4, 5, tzinfo=UTC)
    trips = [{"id": "ø", "city": "Oslo", "km": 3.5, "at": at}, {"id": "b", "city": None, "km": None, "at": None}]
    live.cluster.produce("trips", trips, key="id").raise_for_failures()
    with served(live.cluster) as address:
        found = [(key, json.loads(value or b"")) for _, _, key, value, _ in consumed(address, "trips")]
    assert found == [
        ("ø".encode(), {"city": "Oslo", "km": 3.5, "at": "2013-01-02T03:04:05.000000+00:00"}),
        (b"b", {"city": None, "km": None, "at": None}),
    ]


def test_offsets_without_records_are_passed_also_at_the_end(tmp_path: Path) -> None:
    live, source = LiveCluster(tmp_path), MemorySource(1)
    source.logs[0].append("a", gaps=3)
    source.logs[0].append("b", gaps=500)
    options = MirrorOptions(replication_factor=3)
    with_ports(mirror, ports_of(live.cluster))(source, ["t"], options).raise_for_failures()
    with served(live.cluster) as address:
        for offset in (0, 2, 6, 300):
            found = [(at, value) for at, _, _, value, _ in consumed(address, offset=offset)]
            assert found == [one for one in [(0, b"a"), (4, b"b")] if one[0] >= offset]


@pytest.mark.slow
def test_a_reader_of_committed_records_stops_at_an_open_transaction(tmp_path: Path) -> None:
    live = Ledger(tmp_path).begin()
    for number, commits in enumerate((True, False)):
        transaction = live.driver().transactions.begin(f"x{number}")
        put(transaction, {"t-0": f"of {number}"})
        transaction.commit() if commits else transaction.abort()
    live.append(["plain"]).raise_for_failures()
    still_open = live.driver().transactions.begin("y")
    put(still_open, {"t-0": "open"})
    live.append(["behind"]).raise_for_failures()
    with served(live.cluster) as address:
        of_all = [value for *_, value, _ in consumed(address, isolation_level="read_uncommitted")]
        assert of_all == [b"of 0", b"of 1", b"plain", b"open", b"behind"]
        assert [value for *_, value, _ in consumed(address)] == [b"of 0", b"plain"]
        still_open.commit()
        assert [value for *_, value, _ in consumed(address)] == [b"of 0", b"plain", b"open", b"behind"]


def test_consumers_find_offsets_by_time(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    for at_ms in (1000, 3000):
        live.append(["a", "b"], at_ms=at_ms).raise_for_failures()
    with served(live.cluster) as address, consumer(address) as made:

        def first_at(millis: int) -> int:
            return int(made.offsets_for_times([TopicPartition("t", 0, millis)], timeout=TIMEOUT_S)[0].offset)

        assert [first_at(at) for at in (0, 1000, 1001, 3000)] == [0, 0, 2, 2]
        assert first_at(3001) == first_at(1 << 62) == -1


@pytest.mark.slow
def test_offsets_below_the_log_start_and_above_its_end_are_out_of_range(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a", "b", "c"]).raise_for_failures()
    live.cluster.topics.delete_records("t", {0: 2}).raise_for_failures()
    with served(live.cluster) as address:
        for offset in (1, 4):
            with pytest.raises(KafkaException) as error:
                consumed(address, offset=offset)
            assert error.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
        assert [at for at, *_ in consumed(address, offset=1, auto_offset_reset="earliest")] == [2]
        with consumer(address) as made:
            assert made.get_watermark_offsets(TopicPartition("t", 0), timeout=TIMEOUT_S) == (2, 3)


def test_groups_continue_where_they_were_here_and_there(tmp_path: Path) -> None:
    live = Ledger(tmp_path).begin()
    live.append({0: ["a", "b"], 1: ["c"]}).raise_for_failures()
    live.cluster.groups.commit("g", {("t", 1): 1})
    with served(live.cluster) as address, consumer(address) as made:
        done = made.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
        assert done[0].error is None
        asked = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
        found = made.committed(asked, timeout=TIMEOUT_S)
        assert [one.offset for one in found] == [2, 1, -1001]
        made.commit(offsets=[TopicPartition("t", 0, 99)], asynchronous=False)
        assert [one.offset for one in made.committed(asked[:1], timeout=TIMEOUT_S)] == [99]
    committed = live.cluster.groups.committed("g")
    assert {key: one.offset for key, one in committed.items()} == {("t", 0): 99, ("t", 1): 1}
    report = live.cluster.groups.lag("g")
    assert [(row["lag"], row["beyond_end"]) for row in report.rows] == [(None, 97), (0, None)]
    (note,) = report.notes
    assert note.startswith("t-0: the committed offset 99 is beyond the log end 2")


def test_producers_are_refused_in_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a"]).raise_for_failures()
    with served(live.cluster) as address, live.unchanged():
        messages: list[int] = []
        producer = Producer({"bootstrap.servers": "{}:{}".format(*address)})
        producer.produce("t", b"mine", on_delivery=lambda failed, _: messages.append(failed.code()))
        assert producer.flush(TIMEOUT_S) == 0
        assert messages == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        servers = {"bootstrap.servers": "{}:{}".format(*address), "client.id": "exact", "log_level": 0}
        exact = Producer({**servers, "transactional.id": "x"})
        with pytest.raises(KafkaException) as error:
            exact.init_transactions(TIMEOUT_S)
        assert error.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    found = [one.getMessage() for one in caplog.records if one.name == "stratalog.serve"]
    assert [line.partition(". ")[0] for line in found] == [
        "refused: client 'rdkafka' at 127.0.0.1 produces to t",
        "refused: client 'exact' at 127.0.0.1 starts to produce",
    ]


def test_a_consumer_of_the_protocol_that_is_not_served_ends_with_an_error(tmp_path: Path) -> None:
    """librdkafka waits without an error where ConsumerGroupHeartbeat is not listed (KIP-848)."""
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a"]).raise_for_failures()
    with served(live.cluster) as address, live.unchanged():
        servers = {"bootstrap.servers": "{}:{}".format(*address), "log_level": 0}
        asking = Consumer({**servers, "group.id": "g", "group.protocol": "consumer"})
        asking.subscribe(["t"])
        message = asking.poll(TIMEOUT_S)
        assert message is not None
        assert message.error().code() == KafkaError._FATAL
        assert "API version not supported" in message.error().str()
        asking.close()


def test_topics_are_listed_and_none_is_made_by_asking(tmp_path: Path) -> None:
    live = Ledger(tmp_path).begin()
    live.cluster.groups.commit("g", {("t", 1): 0})
    with served(live.cluster) as address, live.unchanged(), consumer(address) as made:
        found = made.list_topics(timeout=TIMEOUT_S)
        assert {name: len(one.partitions) for name, one in found.topics.items()} == {
            "t": 2,
            "u": 1,
            "__consumer_offsets": 1,
        }
        assert (found.cluster_id, found.controller_id, list(found.brokers)) == ("c", 0, [0])
        nobody = made.list_topics("nobody", timeout=TIMEOUT_S).topics["nobody"]
        assert nobody.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def certificate(folder: Path) -> tuple[str, str]:
    """A self-signed certificate of 127.0.0.1, and its key."""
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "log")])
    then = datetime(2020, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(then)
        .not_valid_after(then + timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(private)
    return str(folder / "cert.pem"), str(folder / "key.pem")


def say_something(address: tuple[str, int], ca: str) -> None:
    """Connect without a client certificate; a server may refuse only after the handshake."""
    trusted = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection(address, TIMEOUT_S) as plain,
        trusted.wrap_socket(plain, server_hostname=address[0]) as stranger,
    ):
        stranger.sendall(b"\0\0\0\x0a")
        if not stranger.recv(1):
            raise ConnectionResetError


def test_a_server_with_tls_accepts_only_clients_with_a_certificate(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a"]).raise_for_failures()
    cert, key = certificate(tmp_path)
    client = {"security.protocol": "SSL", "ssl.ca.location": cert}
    with served(live.cluster, tls_cert=cert, tls_key=key, tls_client_ca=cert) as address:
        known = {**client, "ssl.certificate.location": cert, "ssl.key.location": key}
        assert [value for *_, value, _ in consumed(address, **known)] == [b"a"]
        with pytest.raises((ssl.SSLError, ConnectionError)):
            say_something(address, cert)
    with pytest.raises(InvalidCallError, match="not a certificate and its key in PEM"):
        live.cluster.serve(ANYWHERE, tls_cert=str(live.file))


def test_bad_calls_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    with served(live.cluster) as address:
        taken = "{}:{}".format(*address)
        assert job(["--cluster", str(live.file), "--listen", taken]) == 2
        assert "cannot listen there" in capsys.readouterr().err
    assert job(["--cluster", str(live.file), "--listen", f"{'a' * 64}.example:9092"]) == 2
    assert "cannot listen there" in capsys.readouterr().err
    for wrong in ("9092", "here:", "here:70000"):
        assert job(["--cluster", str(live.file), "--listen", wrong]) == 2
        assert "write it as host:port" in capsys.readouterr().err
    assert job(["--cluster", str(live.file), "--tls-client-ca", "ca.pem"]) == 2
    assert "--tls-cert" in capsys.readouterr().err
    for options in ({"poll_s": 0.0}, {"max_connections": 0}):
        with pytest.raises(InvalidCallError, match="above 0"):
            live.cluster.serve(ANYWHERE, **options)  # type: ignore[arg-type]

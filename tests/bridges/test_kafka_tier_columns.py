"""Record batches of Kafka as columns: batches of aiokafka, batches of real brokers, and damaged batches."""

from __future__ import annotations

import random
import re
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.bridges.kafka_tier import batches as reading
from stratalog.bridges.kafka_tier import columns
from stratalog.bridges.kafka_tier.batches import batches_of, decompressed
from stratalog.bridges.kafka_tier.columns import RECORDS, decode
from stratalog.partitions.errors import CorruptionError, InvalidCallError, StratalogError
from tests.bridges.kafka_tier_data import FOLDERS, Row, Tier, batch_bytes, real, rows_of

small = st.one_of(st.none(), st.binary(max_size=300))
record = st.tuples(small, small, st.lists(st.tuples(st.text(max_size=5), small), max_size=3))


def decoded(data: bytes, start: int = 0, end: int = 1 << 62) -> pa.RecordBatch:
    found = [one for one in batches_of(data, 0, "segment s") if not one.control]
    rows = decode([decompressed(one, "segment s") for one in found], start, end, "segment s")
    rows.validate(full=True)
    assert rows.schema == RECORDS
    return rows


@given(st.lists(st.lists(record, min_size=1, max_size=5), max_size=4), st.sampled_from([0, 1]))
def test_batches_that_aiokafka_writes_decode_to_their_records(batches: list[list[Any]], codec: int) -> None:
    data, expected, offset = b"", [], 0
    for records in batches:
        data += batch_bytes(records, offset, codec=codec, epoch=3)
        for number, (key, value, headers) in enumerate(records):
            expected.append((offset + number, 1_700_000_000_000 + number, 0, 3, key, value, headers))
        offset += len(records) + 2
    assert (rows_of(decoded(data)) if data else []) == expected


@pytest.mark.parametrize("width", [1, 63, 64, 200], ids="{} batches".format)
def test_many_batches_and_few_are_decoded_the_same_way(width: int) -> None:
    draw = random.Random(width)
    data, expected, offset = b"", [], 0
    for _ in range(width):
        records = [
            (
                draw.choice([None, b"", draw.randbytes(draw.randrange(90))]),
                draw.choice([None, b"", draw.randbytes(draw.choice([3, 64, 9000]))]),
                [("h", None), ("", b"x" * draw.randrange(200))][: draw.randrange(3)],
            )
            for _ in range(draw.choice([1, 2, 40]))
        ]
        data += batch_bytes(records, offset)
        expected += [(offset + n, 1_700_000_000_000 + n, 0, 0, *one) for n, one in enumerate(records)]
        offset += len(records)
    assert rows_of(decoded(data)) == expected
    middle = offset // 2
    assert rows_of(decoded(data, 1, middle)) == expected[1:middle]


@real
@pytest.mark.parametrize("folder", FOLDERS)
def test_segments_of_real_brokers_have_the_records_that_consumers_got(folder: str) -> None:
    """All codecs, and both types of timestamps. Another test has the offsets of the abandoned lineage."""
    tier = Tier(folder)
    states = tier.states()
    truth: dict[tuple[str, int], dict[int, Row]] = {}
    for topic in tier.topics():
        found = tier.truth(topic)
        for part in found["partitions"]:
            base, _, moment = topic.partition(".")
            name = f"{base}-{part['partition']}" + (f".{moment}" if moment else "")
            for row in tier.records(name):
                truth.setdefault((found["topicId"], part["partition"]), {}).setdefault(row[0], row)
    seen = 0
    for segment in states.segments.values():
        if segment.state != 1 or segment.topic in ("unclean",):
            continue
        opened = tier.layout.open(tier.store, segment)
        rows = rows_of(decoded(opened.read(0, opened.size_bytes)))
        its = truth[segment.topic_id, segment.partition]
        assert rows == [its[row[0]] for row in rows]
        seen += len(rows)
    assert seen > 1000


def signed(data: bytes) -> bytes:
    """The batch with the right checksum of its bytes."""
    return data[:17] + google_crc32c.value(data[21:]).to_bytes(4, "big") + data[21:]


GOOD = batch_bytes([(b"key", b"value", [("h", b"x")]), (None, None, [])], 10)


def put(at: int, *new: int) -> bytes:
    return signed(GOOD[:at] + bytes(new) + GOOD[at + len(new) :])


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (GOOD[:70] + b"!" + GOOD[71:], CorruptionError, "wrong checksum"),
        (put(16, 1), InvalidCallError, "format 1"),
        (put(16, 9), CorruptionError, "no record batch"),
        (put(8, 0, 0, 0, 9), CorruptionError, "length of 9"),
        (put(8, 255, 255, 255, 255), CorruptionError, "length of -1"),
        (put(8, 127, 255, 255, 255), InvalidCallError, "fits into a task"),
        (put(21, 1, 0), InvalidCallError, "attributes"),
        (put(22, 7), InvalidCallError, "attributes"),
        (put(22, 1), CorruptionError, "not compressed by gzip"),
        (put(22, 2), CorruptionError, "snappy"),
        (put(22, 3), CorruptionError, "not compressed by lz4"),
        (put(22, 4), CorruptionError, "not compressed by zstd"),
        (put(57, 0, 0, 0, 3), CorruptionError, "3 records"),
        (put(57, 0, 0, 0, 1), CorruptionError, "do not end where"),
        (put(57, 0, 0, 0, 0), CorruptionError, "no records"),
        (put(57, 255, 255, 255, 255), CorruptionError, "-1 records"),
        (put(23, 255, 0, 0, 0), CorruptionError, "2 records"),
        (put(61, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF), CorruptionError, "more than 5 bytes"),
        (put(61, 1), CorruptionError, "outside its batch|do not end"),
        (put(64, 20), CorruptionError, "outside its batch"),
        (put(64, 1), CorruptionError, "outside its batch"),
        (put(65, 0x7E), CorruptionError, "key has an impossible length"),
        (put(65, 3), CorruptionError, "key has an impossible length"),
        (put(69, 0x7E), CorruptionError, "value has an impossible length"),
        (put(75, 0x7E), CorruptionError, "number of headers"),
        (put(75, 1), CorruptionError, "number of headers"),
        (put(75, 0), CorruptionError, "bytes after its headers"),
        (put(76, 1), CorruptionError, "header"),
        (put(78, 0x7E), CorruptionError, "header"),
        (put(27, 0x7F), InvalidCallError, "timestamp"),
    ],
)
def test_damage_with_a_right_checksum_is_named(data: bytes, kind: type[StratalogError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        decoded(data)
    assert "segment s" in str(caught.value)


@pytest.mark.parametrize(
    ("at", "value", "kind", "message"),
    [
        (0, b"\xff", CorruptionError, "records at offsets -"),
        (0, b"\x7f" + b"\xff" * 7, CorruptionError, "records at offsets"),
        (8, b"\x00\x00\x00\x10", CorruptionError, "has a length of 16"),
        (8, b"\x7f", InvalidCallError, "more than fits into a task"),
        (16, b"\x01", InvalidCallError, "format 1, of Kafka before 0.11"),
        (16, b"\x03", CorruptionError, "there is no record batch"),
        (17, b"\x00\x00\x00\x00", CorruptionError, "a wrong checksum"),
        (21, b"\x01\x00", InvalidCallError, "attributes 0x100, which are not supported"),
        (21, b"\x00\x07", InvalidCallError, "attributes 0x7, which are not supported"),
        (23, b"\xff", CorruptionError, "2 records at offsets"),
        (57, b"\xff", CorruptionError, "-.* records at offsets"),
        (57, b"\x00\x00\x00\x03", CorruptionError, "3 records at offsets"),
        (23, b"\x00\x20\x00\x00" + GOOD[27:57] + b"\x00\x20\x00\x00", InvalidCallError, "2097152 records"),
    ],
)
def test_the_first_damaged_batch_is_named(at: int, value: bytes, kind: type[StratalogError], message: str) -> None:
    """Many batches are checked at a time; the two after the first damaged one are damaged as well."""
    batch = bytearray(GOOD)
    batch[at : at + len(value)] = value
    damaged = bytes(batch) if at in (8, 16, 17) else signed(bytes(batch))
    also = GOOD[:17] + bytes(4) + GOOD[21:]
    with pytest.raises(kind, match=message) as caught:
        batches_of(GOOD + GOOD + damaged + also, 1000, "segment s")
    assert re.search(rf"at byte {1000 + 2 * len(GOOD)}\b", str(caught.value))


def test_batches_above_the_wanted_offsets_are_not_checked() -> None:
    behind = GOOD[:17] + bytes(4) + GOOD[21:]
    (only,) = batches_of(GOOD + behind, 0, "s", until=12)
    assert (only.base_offset, only.last_offset, only.end) == (10, 11, len(GOOD))
    with pytest.raises(CorruptionError, match="checksum"):
        batches_of(GOOD + behind, 0, "s", until=13)


def test_records_that_were_read_together_are_decoded_without_a_copy() -> None:
    found = batches_of(GOOD + GOOD, 0, "s")
    joined = columns._joined(found)[0]
    assert joined is found[0].data is found[1].data
    other = batches_of(GOOD, 0, "s")
    assert decode([*found, *other], 0, 1 << 62, "s").num_rows == 6


def test_a_batch_that_is_cut_off_is_left_out() -> None:
    for size in range(len(GOOD)):
        assert list(batches_of(GOOD[:size], 0, "s")) == []


def test_bytes_that_decompress_to_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BATCH_BYTES", 100_000)
    bomb = batch_bytes([(None, bytes(200_000), [])], codec=1)
    assert len(bomb) < 1000
    with pytest.raises(InvalidCallError, match="more than fits into a task"):
        decoded(bomb)
    for name, number in (("lz4", 3), ("zstd", 4)):
        payload = pa.Codec(name).compress(bytes(200_000), asbytes=True)
        with pytest.raises(InvalidCallError, match="more than fits into a task"):
            decoded(raw(payload, number))
    for payload in (b"\xc0\x9a\x0c" + bytes(50), reading._XERIAL + bytes(8) + b"\x00\x00\x00\x04\xc0\x9a\x0c\x00"):
        with pytest.raises(InvalidCallError, match="more than fits into a task"):
            decoded(raw(payload, 2))


def test_more_headers_than_fit_into_a_task_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = batch_bytes([(None, b"v", [("h", None)] * 3)])
    assert decoded(data).num_rows == 1
    monkeypatch.setattr(columns, "_MOST_HEADERS", 2)
    with pytest.raises(InvalidCallError, match="more than 2 headers, more than fits into a task"):
        decoded(data)


def raw(payload: bytes, codec: int, records: int = 1) -> bytes:
    """A batch with these bytes as its records."""
    head = bytearray(GOOD[:61])
    head[8:12] = (49 + len(payload)).to_bytes(4, "big")
    head[22] = codec
    head[23:27] = (records - 1).to_bytes(4, "big")
    head[57:61] = records.to_bytes(4, "big")
    return signed(bytes(head) + payload)


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_random_damage_to_records_and_codecs_raises_stratalog_errors(name: str) -> None:
    draw = random.Random(f"damage {name}")
    number = ["", "gzip", "snappy", "lz4", "zstd"].index(name)
    plain = GOOD[61:]
    messages, read = [], 0
    for _ in range(600):
        records = bytearray(plain)
        for _ in range(draw.randrange(3)):
            records[draw.randrange(len(records))] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
        payload = bytearray(pa.Codec(name).compress(bytes(records), asbytes=True))
        if draw.random() < 0.5:
            payload[draw.randrange(len(payload))] ^= 1 << draw.randrange(8)
        if draw.random() < 0.2:
            del payload[draw.randrange(len(payload)) :]
        try:
            decoded(raw(bytes(payload), number, draw.choice([1, 2, 2, 2, 3])))
            read += 1
        except StratalogError as error:
            messages.append(str(error))
    assert read
    assert all("segment s" in message for message in messages)

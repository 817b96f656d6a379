"""Stored data is read up to a bound, and decoded by one decoder, with one error for all faults."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stratalog.partitions.bounded import decode_json, read_bounded, read_listed
from stratalog.partitions.errors import CorruptionError, InvalidCallError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.numbers import Epoch, Int64, Natural
from stratalog.partitions.records import MOST_NESTED, type_from_json
from stratalog.partitions.register import EPOCH_BYTES, REGISTER_BYTES, sealed
from stratalog.partitions.root import BROKER_FILE_BYTES, read_broker_file
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore

ROOT = Path(__file__).resolve().parents[2]


class Said(msgspec.Struct):
    epoch: Epoch = 0
    offset: Natural = 0
    number: Int64 = 0
    text: str = ""


BAD = {
    "nested in a field that nobody knows": b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "cut": b'{"epoch":1',
    "empty": b"",
    "no UTF-8": b'{"text":"\xff"}',
    "half of a surrogate pair": b'{"text":"\\ud800"}',
    "NaN": b'{"number":NaN}',
    "infinity": b'{"x":Infinity}',
    "more digits than Python converts": b'{"number":' + b"9" * 5000 + b"}",
    "more than 64 bits": b'{"number":9223372036854775808}',
    "a negative offset": b'{"offset":-1}',
    "an epoch of eleven digits": b'{"epoch":10000000000}',
    "another type": b'{"number":"1"}',
}


@pytest.mark.parametrize("name", BAD)
def test_whatever_is_wrong_with_a_text_is_corruption_that_names_it(name: str) -> None:
    with pytest.raises(CorruptionError, match=r"^file:///b/x is no y: "):
        decode_json(BAD[name], Said, "file:///b/x is no y")


def test_the_greatest_numbers_are_read() -> None:
    text = b'{"epoch":9999999999,"offset":9223372036854775807,"number":-9223372036854775808}'
    assert decode_json(text, Said, "x") == Said(9_999_999_999, 2**63 - 1, -(2**63))


def test_one_request_fetches_no_more_of_an_object_than_the_bound() -> None:
    store = MemoryStore("memory://b")
    store.create("small", b"1234")
    store.create("large", b"12345" * 1000)
    before = store.counts.snapshot()
    assert read_bounded(store, "small", 4) == b"1234"
    with pytest.raises(CorruptionError, match=r"memory://b/large has more than 4 bytes"):
        read_bounded(store, "large", 4)
    spent = store.counts - before
    assert (spent.requests, spent.read_bytes) == (2, 9)


def test_an_object_that_the_listing_shows_as_too_large_is_not_requested() -> None:
    store = MemoryStore("memory://b")
    store.create("large", b"12345")
    [listed] = store.list("")
    before = store.counts.snapshot()
    with pytest.raises(CorruptionError, match="more than 4 bytes"):
        read_listed(store, listed, 4)
    assert (store.counts - before).requests == 0
    assert read_listed(store, listed, 5) == b"12345"


@pytest.mark.parametrize(
    "content",
    [
        *BAD.values(),
        b'{"cluster_id":"c","broker_id":1,"directory_id":"../../../x"}',
        b'{"cluster_id":"c","broker_id":1,"directory_id":"' + b"A" * 32 + b'"}',
        b'{"cluster_id":"c","broker_id":1,"directory_id":"' + b"a" * 32 + b'"}' + b" " * BROKER_FILE_BYTES,
    ],
)
def test_a_broker_file_of_a_stranger_is_corruption(content: bytes) -> None:
    store = MemoryStore("memory://b")
    store.create("broker.json", content)
    with pytest.raises(CorruptionError, match=r"memory://b/broker\.json"):
        read_broker_file(store)


@pytest.mark.parametrize("entry", ["[10000000000,0]", "[1,-1]", f"[1,{2**63}]", f"[1,{'9' * 5000}]", "[1,0.5]"])
def test_a_lineage_with_numbers_that_no_name_has_is_corruption(entry: str) -> None:
    with pytest.raises(CorruptionError, match="x is not a lineage"):
        Lineage.from_json(sealed(f"[{entry}]".encode()), "x")


def test_no_register_is_written_that_nobody_would_read() -> None:
    assert len(sealed(b"x" * (REGISTER_BYTES - 9))) == REGISTER_BYTES
    with pytest.raises(InvalidCallError, match="is not written"):
        sealed(b"x" * (REGISTER_BYTES - 8))


@pytest.mark.slow
def test_a_lineage_of_more_elections_than_a_partition_has_is_neither_written_nor_made_an_object() -> None:
    """A register of 16 MiB would take 180 MB of memory; the limit of this test applies to lineages alone."""
    most = Lineage((epoch, 10**15 + epoch) for epoch in range(10**9, 10**9 + EPOCH_BYTES // 32))
    assert Lineage.from_json(most.to_json(), "x") == most
    larger = Lineage([*most, *((epoch, 10**16) for epoch in range(2 * 10**9, 2 * 10**9 + 10_000))])
    with pytest.raises(InvalidCallError, match="is not written"):
        larger.to_json()
    with pytest.raises(CorruptionError, match="more than 1048576"):
        Lineage.from_json(larger.to_json(REGISTER_BYTES), "x")


def nested(levels: int) -> str:
    """Nested arrays around a long, with ``levels`` types."""
    return '{"type":"array","elementType":' * (levels - 1) + '"long"' + "}" * (levels - 1)


def test_declared_types_nest_up_to_a_bound() -> None:
    type_from_json(nested(MOST_NESTED))
    for levels in (MOST_NESTED + 1, 5000):
        with pytest.raises(InvalidCallError):
            type_from_json(nested(levels))


GIGABYTES = 3 << 30
LIMIT = 1 << 30


@pytest.mark.slow
def test_files_of_gigabytes_under_our_names_take_no_memory(tmp_path: Path) -> None:
    """A sparse file for each kind that is read whole, in a process of one gigabyte."""
    (tmp_path / "a").mkdir()
    for name in ("broker.json", "a/0000000001.epoch", "a/0000000001.claim"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, GIGABYTES)
    code = f"""
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.register import REGISTER_BYTES
from stratalog.partitions.root import inspect_root, read_broker_file
from stratalog.partitions.store.local import LocalStore
store = LocalStore({str(tmp_path)!r})
for read in (
    lambda: read_broker_file(store),
    lambda: inspect_root(store),
    lambda: read_bounded(store, "a/0000000001.epoch", REGISTER_BYTES),
    lambda: read_bounded(store, "a/0000000001.claim", 1024),
):
    try:
        read()
    except CorruptionError:
        print("refused")
"""
    assert in_a_gigabyte(code).split() == ["refused"] * 4


def in_a_gigabyte(code: str) -> str:
    """The output of a Python program with ``LIMIT`` bytes of address space for its data."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=limited,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_local_store_reads_a_range_of_a_sparse_file(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    os.truncate(tmp_path / "x", GIGABYTES)
    store: Any = LocalStore(str(tmp_path))
    with pytest.raises(CorruptionError):
        read_bounded(store, "x", 100)
    assert store.counts.read_bytes == 101


@pytest.mark.slow
def test_threads_may_ask_for_a_type_at_once_that_nobody_has_decoded_yet() -> None:
    """The decoding runs in a separate process, because it once crashed the process."""
    code = """
import sys, threading
import msgspec
from stratalog.partitions.bounded import described, parse_json
sys.setswitchinterval(1e-6)
for _ in range(100):
    fields = [(f"f{i}", "int | None", None) for i in range(20)]
    inner = msgspec.defstruct("Inner", fields)
    outer = msgspec.defstruct("Outer", [("inner", list[inner]), *fields])
    at_once = threading.Barrier(4)
    def ask():
        at_once.wait()
        assert parse_json(b'{"inner": [{"f19": 2}], "f18": 3}', outer).inner[0].f19 == 2
        assert msgspec.convert({"f19": 1}, described(inner)).f19 == 1
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""A schema registry with arbitrary and slow answers: each call ends with one of stratalog's errors."""

from __future__ import annotations

import io
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from stratalog import StratalogError
from stratalog.bridges.formats import registry as registry_module
from stratalog.bridges.formats import registry_http
from stratalog.bridges.formats.opening import typed_values
from stratalog.bridges.formats.registry import SchemaRegistry
from stratalog.partitions.errors import RetriableError
from tests.depth import at_depth

READER = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": ["null", "long"], "default": None},
        {
            "name": "tags",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "e",
                    "fields": [{"name": "x", "type": "long", "default": 1}],
                },
            },
            "default": [],
        },
    ],
}
GOOD = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
SEEDS = at_depth(test=20, nightly=2000)

Answer = Callable[[socket.socket], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The address of a single-threaded server that answers each connection in this way."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                with suppress(OSError):
                    there, _ = server.accept()
                    with there:
                        there.settimeout(5)
                        if not ended.is_set():
                            there.recv(65536)
                            answer(there)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        yield f"http://127.0.0.1:{port}"
        ended.set()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
        thread.join(10)


def http(body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + headers + b"Connection: close\r\n\r\n" + body


def encoded(schema: object) -> bytes:
    return json.dumps({"schema": json.dumps(schema)}).encode()


def mutated_schema(rng: random.Random) -> object:
    """A schema with some parts replaced."""
    odd: list[object] = [
        None, 1, -1, 1e308, "", "null", "r", "long", [], {}, ["null"], ["null", "null"], "\x1b[2J", "a" * 100_000,
        {"type": "fixed", "name": "f", "size": 0}, {"type": "fixed", "name": "f", "size": 2**62},
        {"type": "enum", "name": "n", "symbols": []}, {"type": "array", "items": "null"},
        {"type": "record", "name": "e", "fields": []}, {"type": "array", "items": {"type": "array", "items": "r"}},
        {"type": "bytes", "logicalType": "decimal", "precision": 10**9, "scale": -1}, {"type": {"type": "long"}},
    ]  # fmt: skip

    def change(node: object) -> object:
        if rng.random() < 0.15:
            return rng.choice(odd)
        if isinstance(node, dict):
            return {key: change(value) for key, value in node.items() if rng.random() > 0.05}
        if isinstance(node, list):
            return [change(one) for one in node for _ in range(rng.choice((1, 1, 1, 2)))]
        return node

    return change(READER)


def mutated_answer(rng: random.Random, here: str) -> bytes:
    good = http(encoded(mutated_schema(rng) if rng.random() < 0.7 else GOOD))
    match rng.randrange(10):
        case 0:
            at = rng.randrange(len(good))
            return good[:at]
        case 1:
            changed = bytearray(good)
            for _ in range(rng.randrange(1, 9)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            return bytes(changed)
        case 2:
            status = rng.choice(
                (b"404 No", b"401 No", b"500 \x1b[2J" + b"x" * 60_000, b"999 x", b"-1 x", b"abc", b"200")
            )
            return http(b"", status)
        case 3:
            to = rng.choice(
                (here, "ftp://127.0.0.1/x", "file:///etc/passwd", "http://127.0.0.1:1/", "//", "\x00", "/")
            )
            return http(b"", b"302 Found", b"Location: " + to.encode() + b"\r\n")
        case 4:
            return http(
                encoded(GOOD), headers=b"X: y\r\n" * rng.choice((50, 99, 200)) + b"Y: " + b"z" * 70_000 + b"\r\n"
            )
        case 5:
            return http(b"zz\r\n" + encoded(GOOD), headers=b"Transfer-Encoding: chunked\r\n")
        case 6:
            return http(encoded(GOOD), headers=f"Content-Length: {rng.choice((0, 3, -1, 10**30))}\r\n".encode())
        case 7:
            return http(b"[" * 100_000 + b"]" * 100_000)
        case 8:
            return http(b'{"schema": ' + json.dumps("[" * 50_000).encode() + b"}")
        case _:
            return good


def value(rng: random.Random) -> bytes:
    """A value after the id of a schema; it may contain an array of many items."""
    many = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    body = rng.choice((b"\x02", b"\x00\x02", b"\x02\x0e" + many, many, b"", rng.randbytes(12)))
    return b"\0\0\0\0\1" + body


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, SEEDS, 20))
def test_every_response_of_a_registry_is_an_answer_or_a_stratalog_error(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("fastavro")
    file = tmp_path / "reader.avsc"
    file.write_text(json.dumps(READER))
    for number in range(seed, seed + 20):
        rng = random.Random(number)
        answer = [b""]

        def say(there: socket.socket, answer: list[bytes] = answer) -> None:
            with suppress(OSError):
                there.sendall(answer[0])

        with answering(say) as url:
            answer[0] = mutated_answer(rng, url)
            values = typed_values("confluent-avro", str(file), None, {"schema.registry.url": url})
            assert values is not None
            try:
                column = values.column([value(rng) for _ in range(3)])
                text = f"{len(column)} values"
            except StratalogError as error:
                text = str(error)
            assert text == "3 values" or (text.isprintable() and len(text) < 1000), number


@pytest.mark.parametrize(
    "first", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
def test_a_registry_that_continues_forever_is_given_up(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte at a time keeps each read of the socket alive."""
    monkeypatch.setattr(registry_module, "_TIMEOUT_S", 0.3)

    def drip(there: socket.socket) -> None:
        with suppress(OSError):
            there.sendall(first)
            while True:
                there.sendall(b" ")
                threading.Event().wait(0.02)

    with answering(drip) as url, pytest.raises(RetriableError, match="the schema registry"):
        SchemaRegistry({"schema.registry.url": url}).schema(1)


def test_a_connection_that_comes_too_late_is_closed() -> None:
    sockets = registry_http._Sockets()
    sockets.end()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        connection = registry_http._noted(HTTPConnection, sockets, address)
        with pytest.raises(TimeoutError):
            connection.connect()
        there, _ = server.accept()
        with there:
            there.settimeout(5)
            assert there.recv(1) == b"", "the other side has closed it"


def test_an_answer_without_end_is_read_as_far_as_a_schema_goes() -> None:
    def flood(there: socket.socket) -> None:
        with suppress(OSError):
            there.sendall(http(b""))
            while True:
                there.sendall(b"[" * 1_000_000)

    with answering(flood) as url, pytest.raises(RetriableError, match="the schema registry"):
        SchemaRegistry({"schema.registry.url": url}).schema(1)


@pytest.mark.parametrize("to", ["ftp://127.0.0.1/x", "file:///etc/passwd", "gopher://127.0.0.1/x"])
def test_a_redirect_leads_to_no_server_of_another_kind(to: str) -> None:
    def redirect(there: socket.socket) -> None:
        there.sendall(http(b"", b"302 Found", f"Location: {to}\r\n".encode()))

    with (
        answering(redirect) as url,
        pytest.raises(RetriableError, match="asked for schema 1: 302"),
    ):
        SchemaRegistry({"schema.registry.url": url}).schema(1)


def test_a_schema_whose_values_are_billions_of_items_is_not_used(tmp_path: Path) -> None:
    """An array of records without fields can claim any number of items in a few bytes."""
    fastavro = pytest.importorskip("fastavro")
    file = tmp_path / "reader.avsc"
    file.write_text(json.dumps(READER))
    empty = {"type": "record", "name": "e", "fields": []}
    writer = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "tags", "type": {"type": "array", "items": empty}}],
    }
    made = io.BytesIO()
    fastavro.schemaless_writer(made, writer, {"tags": [{}] * 3})
    with answering(lambda there: there.sendall(http(encoded(writer)))) as url:
        values = typed_values("confluent-avro", str(file), None, {"schema.registry.url": url})
        assert values is not None
        [row] = values.column([b"\0\0\0\0\1" + made.getvalue()]).to_pylist()
    assert row["_undecoded"] is not None

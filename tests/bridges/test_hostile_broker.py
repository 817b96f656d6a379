"""A source of a mirror with arbitrary answers: the mirror ends, with a result or one of stratalog's errors."""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.bare_python import ROOT
from tests.depth import at_depth
from tests.s3_server import free_ports
from tests.unit.cluster_harness import LiveCluster

pytest.importorskip("confluent_kafka")

CASES = at_depth(test=2, nightly=60)


class Liar:
    """Changes, truncates, repeats or delays some of a broker's answers on their way to the client."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._server]
        self._lock = threading.Lock()
        self._connections = 0
        self.address = "{}:{}".format(*self._server.getsockname())
        self.broker = ("", 0)
        self.frames = 0

    def start(self, broker: tuple[str, int]) -> None:
        self.broker = broker
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                broker = socket.create_connection(self.broker, 5)
                with self._lock:
                    self._open += [client, broker]
                    self._connections += 1
                    rng = random.Random(f"{self._seed}.{self._connections}")
                threading.Thread(target=self._ask, args=(client, broker), daemon=True).start()
                threading.Thread(target=self._lie, args=(client, broker, rng), daemon=True).start()

    def _ask(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                broker.sendall(data)

    def _lie(self, client: socket.socket, broker: socket.socket, rng: random.Random) -> None:
        with suppress(OSError), broker.makefile("rb") as answers:
            while head := answers.read(4):
                frame = answers.read(struct.unpack(">i", head)[0])
                self.frames += 1
                client.sendall(self._changed(frame, rng))
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _changed(frame: bytes, rng: random.Random) -> bytes:
        def framed(body: bytes, size: int | None = None) -> bytes:
            return struct.pack(">i", len(body) if size is None else size) + body

        if rng.random() < 0.6:
            return framed(frame)
        changed = bytearray(frame)
        match rng.randrange(8):
            case 0 | 1:  # only bytes after the request's number are changed
                for _ in range(rng.randrange(1, 5)):
                    changed[rng.randrange(min(4, len(changed) - 1), len(changed))] = rng.randrange(256)
                return framed(bytes(changed))
            case 2:  # a field that may be a count or a length
                at = rng.randrange(4, max(len(changed) - 4, 5))
                changed[at : at + 4] = struct.pack(">i", rng.choice((-1, -2, 2**31 - 1, 2**24, 0)))
                return framed(bytes(changed))
            case 3:
                return framed(frame[: rng.randrange(len(frame))])
            case 4:
                return framed(frame, rng.choice((-1, 0, 3, 2**31 - 1, 100 * 2**20)))
            case 5:
                return framed(frame) * 2
            case 6:
                return framed(struct.pack(">i", rng.randrange(2**31)) + frame[4:])
            case _:
                return b""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
    made = LiveCluster(tmp_path_factory.mktemp("source"))
    made.topic(partitions=2)
    for partition in (0, 1):
        made.append({partition: [f"{number}" for number in range(50)]}).raise_for_failures()
    return made


@contextmanager
def lying(live: LiveCluster, seed: int) -> Iterator[Liar]:
    liar = Liar(seed)
    try:
        [port] = free_ports(1)
        with live.cluster.serve(f"127.0.0.1:{port}", poll_s=0.01, advertise=liar.address):
            liar.start(("127.0.0.1", port))
            yield liar
    finally:
        liar.close()


def mirrored(address: str) -> dict[str, str] | None:
    """The outcome; None if librdkafka itself has crashed, as SECURITY.md says."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bridges.hostile_broker_run", address],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
        return None
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.long("librdkafka waits for its own time-outs")
@pytest.mark.parametrize("seed", range(CASES))
def test_whatever_a_broker_answers_a_mirror_ends_by_itself(live: LiveCluster, seed: int) -> None:
    """The mirror neither hangs, nor raises a foreign error, nor uses more memory than allowed."""
    with lying(live, seed) as liar:
        found = mirrored(liar.address)
        assert found is None or set(found) == {"topics", "bounds", "groups", "read"}
        assert liar.frames


@pytest.mark.slow
@pytest.mark.long("librdkafka waits for its own time-outs")
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x7f\xff\xff\xff" + b"x" * 100])
def test_a_server_without_the_kafka_protocol_is_no_source(answer: bytes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    there, _ = server.accept()
                    with there, suppress(OSError):
                        there.settimeout(1)
                        there.recv(4096)
                        there.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        found = mirrored("{}:{}".format(*server.getsockname()))
    assert found is not None
    assert found["topics"] == "RETRIABLE"

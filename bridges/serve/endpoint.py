"""The server: connections, limits, TLS, shutdown. It runs asyncio in a separate thread.

A connection answers one request after the other, as Kafka does. An untrusted client can use at most the memory of
a frame of ``MOST_REQUEST_BYTES``, and of the answer. A frame that is not a request ends only its connection.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from stratalog.bridges.serve.codes import ErrorCode
from stratalog.bridges.serve.describing import Descriptions
from stratalog.bridges.serve.fetching import ServedFetches
from stratalog.bridges.serve.groups import ServedGroups
from stratalog.bridges.serve.members import GroupMembers
from stratalog.bridges.serve.metadata import ServedMetadata
from stratalog.bridges.serve.protocol import (
    ApiKey,
    Fields,
    KafkaRequest,
    MalformedRequestError,
    api_versions,
    read_request,
)
from stratalog.bridges.serve.refusing import ServedProducers, refused_heartbeat
from stratalog.bridges.server import ClusterServer
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.replica_selector import ClientMetadata
from stratalog.jobs.http_server import tls_context
from stratalog.partitions.errors import InvalidCallError, StratalogError
from stratalog.partitions.printable import printable

MOST_REQUEST_BYTES = 1024 * 1024
"""The maximum size of a request. Read requests are small; Kafka's own limit is for write requests."""
_IDLE_S = 600.0
"""Kafka's connections.max.idle.ms."""
_REQUEST_S, _ANSWER_S, _HANDSHAKE_S = 30.0, 60.0, 10.0
"""The time limit to receive a request that has begun, to send an answer, and to start TLS."""
_THREADS = 16
_WILDCARDS = ("0.0.0.0", "::")
LISTEN = "127.0.0.1:9092"

_log = logging.getLogger("stratalog.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of an endpoint. Raises: InvalidCallError."""

    listen: str = LISTEN
    """``host:port``; port 0 selects a free port."""
    advertise: str | None = None
    """``host:port`` for clients, if different from ``listen`` (advertised.listeners)."""
    tls_cert: str | None = None
    tls_key: str | None = None
    """PEM files; without them connections are not encrypted."""
    tls_client_ca: str | None = None
    """The CA of the clients' certificates; None: every client may connect."""
    poll_s: float = 1.0
    """The interval at which the end of a partition is checked, for all clients that wait there."""
    max_connections: int = 100

    def __post_init__(self) -> None:
        _address(self.listen)
        if self.advertise is not None:
            _address(self.advertise)
        if self.poll_s <= 0 or self.max_connections < 1:
            raise InvalidCallError(
                f"poll_s = {self.poll_s}, max_connections = {self.max_connections}: both must be above 0"
            )
        if self.tls_cert is None and (self.tls_key or self.tls_client_ca):
            raise InvalidCallError("a key, or a CA of clients, needs a certificate (tls_cert)")

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context; None without TLS. Raises: InvalidCallError for files that are not certificates."""
        return None if self.tls_cert is None else tls_context(self.tls_cert, self.tls_key, self.tls_client_ca)


def _address(text: str) -> tuple[str, int]:
    """The host and the port. Raises: InvalidCallError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise InvalidCallError(f"{text!r} is not an address: write it as host:port, such as {LISTEN}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class KafkaEndpoint(ClusterServer):
    """A running server of a cluster's topics; close it, or use it in a ``with``."""

    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        execution: Execution,
        memory: Memory,
        options: ServeOptions,
        client: ClientMetadata,
        delete_group: Callable[[str], object],
    ) -> None:
        """Starts listening. Raises: InvalidCallError for an unavailable address; errors from reading the
        metadata.
        """
        self._options = options
        self._totals = dict.fromkeys(("connections", "refused", "requests", "records", "bytes"), 0)
        self._threads = ThreadPoolExecutor(_THREADS, "serve")
        self._metadata = ServedMetadata(metadata, storage, execution, memory)
        self._metadata.image()  # fail now if the cluster cannot be read
        self._fetches = ServedFetches(self._metadata, self._threads, client, options.poll_s, self._count)
        self._groups = ServedGroups(self._metadata, delete_group)
        self._members = GroupMembers(storage.new_id)
        descriptions = Descriptions(self._metadata, self._members)
        self._awaited: Mapping[int, Callable[[KafkaRequest], Awaitable[Fields]]] = {
            ApiKey.FETCH: lambda request: self._fetches.answer(request.body),
            ApiKey.JOIN_GROUP: self._members.join,
            ApiKey.SYNC_GROUP: self._members.sync,
            ApiKey.HEARTBEAT: self._members.heartbeat,
            ApiKey.LEAVE_GROUP: self._members.leave,
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.DELETE_GROUPS: self._delete_groups,
        }
        by_body: Mapping[int, Callable[[Fields], Fields]] = {
            ApiKey.API_VERSIONS: lambda _: {
                "error_code": ErrorCode.NONE,
                "api_versions": api_versions(),
                "throttle_time_ms": 0,
            },
            ApiKey.METADATA: self._metadata.topics,
            ApiKey.FIND_COORDINATOR: self._metadata.coordinator,
            ApiKey.OFFSET_FETCH: self._groups.offsets,
            ApiKey.DESCRIBE_CONFIGS: descriptions.configs,
            ApiKey.LIST_GROUPS: descriptions.groups,
            ApiKey.DESCRIBE_GROUPS: descriptions.described,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda _: refused_heartbeat(),
        }
        producers = ServedProducers(execution.clock)
        self._answers: Mapping[int, Callable[[KafkaRequest], Fields]] = {
            **{key: functools.partial(_by_body, answer) for key, answer in by_body.items()},
            ApiKey.PRODUCE: producers.produce,
            ApiKey.INIT_PRODUCER_ID: producers.init,
            ApiKey.LIST_OFFSETS: self._metadata.offsets,
        }
        self._connections: set[asyncio.Task[None]] = set()
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()
        run = functools.partial(asyncio.run, self._run(options.tls(), started))
        self._thread = threading.Thread(target=run, name="serve", daemon=True)
        self._thread.start()
        self._loop, self._stop, port = started.result()
        host, _ = _address(options.listen)
        reached = (socket.gethostname() if host in _WILDCARDS else host, port)
        self._metadata.address = reached if options.advertise is None else _address(options.advertise)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port for the clients' ``bootstrap.servers``."""
        return self._metadata.address

    def wait(self) -> None:
        """Wait until the server is closed."""
        while self._thread.is_alive():
            self._thread.join(1.0)  # a join without a timeout ignores signals

    def close(self) -> None:
        """End all connections."""
        with suppress(RuntimeError):  # the loop has already ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def report(self) -> Report:
        """The number of connections, requests, records and record bytes so far."""
        return Report("serve", (), (), totals=dict(self._totals))

    async def _run(
        self,
        tls: ssl.SSLContext | None,
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]],
    ) -> None:
        stop = asyncio.Event()
        host, port = _address(self._options.listen)
        patience = None if tls is None else _HANDSHAKE_S
        try:
            server = await asyncio.start_server(
                functools.partial(self._connected, stop), host, port, ssl=tls, ssl_handshake_timeout=patience
            )
        except (OSError, ValueError) as error:  # ValueError: no host can have that name
            message = f"{self._options.listen}: cannot listen there: {getattr(error, 'strerror', None) or error}"
            started.set_exception(InvalidCallError(message))
            return
        started.set_result((asyncio.get_running_loop(), stop, server.sockets[0].getsockname()[1]))
        await stop.wait()
        # A closed server creates no transport for a socket that was just accepted, and leaves it open.
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening)
        await asyncio.sleep(0)
        server.close()
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _connected(self, stop: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Start a connection. The connection is closed when its task is done, because a task that is cancelled
        early never runs.
        """
        self._totals["connections"] += 1
        if stop.is_set() or len(self._connections) >= self._options.max_connections:
            self._totals["refused"] += 1
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._connections.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._connections.discard(task)
            writer.close()

        task.add_done_callback(ended)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = str((writer.get_extra_info("peername") or ("",))[0])
        try:
            while True:
                async with asyncio.timeout(_IDLE_S):
                    length = int.from_bytes(await reader.readexactly(4))
                if not 0 < length <= MOST_REQUEST_BYTES:
                    raise MalformedRequestError(f"a request of {length} bytes")
                async with asyncio.timeout(_REQUEST_S):
                    frame = await reader.readexactly(length)
                writer.write(await self._answer(read_request(frame, host)))
                async with asyncio.timeout(_ANSWER_S):
                    await writer.drain()
        except MalformedRequestError as error:
            peer = writer.get_extra_info("peername")
            _log.info("%s: %s; the connection is closed", printable(str(peer)), error)
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            pass  # the client has disconnected, or hangs
        except asyncio.CancelledError:
            pass  # the endpoint is closed

    async def _answer(self, request: KafkaRequest | bytes) -> bytes:
        self._totals["requests"] += 1
        if isinstance(request, bytes):
            return request
        if request.api_key in self._awaited:
            fields = await self._awaited[request.api_key](request)
        else:
            loop = asyncio.get_running_loop()
            answer = self._answers[request.api_key]
            try:
                fields = await loop.run_in_executor(self._threads, answer, request)
            except StratalogError as error:  # the metadata cannot be read: the client will reconnect
                raise MalformedRequestError(f"api key {request.api_key}: {error}") from error
        return request.answer(fields)

    async def _commit(self, request: KafkaRequest) -> Fields:
        error = self._members.commit_error(request.body)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._groups.commit, request.body, error)

    async def _delete_groups(self, request: KafkaRequest) -> Fields:
        loop = asyncio.get_running_loop()
        with_members = self._members.described().keys()
        return await loop.run_in_executor(self._threads, self._groups.delete, request.body, with_members)

    def _count(self, records: int, size_bytes: int) -> None:
        self._totals["records"] += records
        self._totals["bytes"] += size_bytes


def _by_body(answer: Callable[[Fields], Fields], request: KafkaRequest) -> Fields:
    return answer(request.body)

"""Lookups that a reader of the page requests: some records, and the versions of a remote table.

A lookup has a limit of records, bytes, and seconds, and at most ``MOST_AT_ONCE`` run concurrently, so readers of
the page never delay ``maintain``. Answers are plain data; every text in them is printable.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.plain_values import as_it_is, plain, time_text
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.fetch import fetch
from stratalog.engine.reading.list_offsets import offset_at, takes_remote
from stratalog.engine.reading.look import PartitionState, TakesRemote, look
from stratalog.engine.reading.positions import FirstAt
from stratalog.partitions import paths
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.clock import Clock
from stratalog.partitions.declared import ddl
from stratalog.partitions.errors import CorruptionError, InvalidCallError, StoreTimeoutError
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import UnknownOffset
from stratalog.partitions.printable import printable
from stratalog.partitions.store import Store
from stratalog.tiering.delta_entries import ENTRY
from stratalog.tiering.foreign_commits import parse_commit

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS = 20
MOST_BYTES = 256 * 1024
MOST_CHARACTERS = 4000
"""The maximum number of characters of one key, value or header."""
MOST_HEADERS = 20
TIMEOUT_S = 10.0
MOST_AT_ONCE = 2
VERSIONS = 20
MOST_ENTRY_BYTES = 1024 * 1024
"""The maximum size of an entry in the log of a table; it is enough for a few thousand files."""
Given = Mapping[str, str]


class BusyError(Exception):
    """Too many lookups of other readers are running."""


class Lookups:
    """The lookups of one server."""

    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        clock: Clock,
        memory: Memory,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._metadata, self._storage, self._memory = metadata, storage, memory
        self._for_records = metadata, storage, clock, memory
        self._timeout_s = timeout_s
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)

    def records(self, given: Given) -> dict[str, Any]:
        """At most ``RECORDS`` records of ``topic`` and ``partition`` starting at ``offset``, or from the first
        record at or after ``time`` (ISO 8601). Without either, the last records. ``next`` is the offset for the
        next lookup.

        Raises: InvalidCallError; BusyError; StoreTimeoutError; see ``fetch``.
        """
        self._only(given, {"topic", "partition", "offset", "time"})
        topic, partition = self._named(given), _number(given, "partition")
        if "offset" in given and "time" in given:
            raise InvalidCallError("offset and time cannot be used together: give one of them")
        offset = _number(given, "offset") if "offset" in given else None
        time = FirstAt(given["time"]) if "time" in given else None
        if partition >= len(self._metadata.image().topic(topic).partitions):
            raise InvalidCallError(f"topic {topic!r} has no partition {partition}")
        return self._bounded(lambda: self._records(topic, partition, offset, time))

    def _records(self, topic: str, partition: int, offset: int | None, time: FirstAt | None) -> dict[str, Any]:
        if time is not None:
            state = self._look(topic, partition, lambda seen: takes_remote(seen, time))
            found = offset_at(state, time, Isolation.READ_UNCOMMITTED)
            if isinstance(found, UnknownOffset):
                raise InvalidCallError(found.reason)
            offset = found
        elif offset is None:
            state = self._look(topic, partition, lambda _: False)
            end = state.positions.high_watermark
            offset = max(state.positions.log_start, end - RECORDS)
        fetched = fetch(
            *self._for_records, topic, partition, offset, max_bytes=MOST_BYTES, timeout_s=self._timeout_s
        )
        records = fetched.records.slice(0, RECORDS)
        image = self._metadata.image().topic(topic)
        cut = records.num_rows < fetched.records.num_rows
        return {
            "topic": printable(topic),
            "partition": partition,
            "offset": offset,
            "next": records["offset"][-1].as_py() + 1 if cut else fetched.next_offset,
            "log_start": fetched.log_start,
            "high_watermark": fetched.high_watermark,
            "remote": fetched.remote,
            "key_type": _type(image.key_schema),
            "value_type": _type(image.value_schema),
            "records": [_record(records, row) for row in range(records.num_rows)],
        }

    def _look(self, topic: str, partition: int, takes: TakesRemote) -> PartitionState:
        _, [state] = look(self._metadata, self._storage, self._memory, topic, [partition], takes)
        return state

    def table(self, given: Given) -> dict[str, Any]:
        """The last ``VERSIONS`` versions of the remote table of ``topic``, the latest first.

        Raises: InvalidCallError, also for a topic that is not tiered; BusyError; StoreTimeoutError; kinds of
            StorageError and CorruptionError.
        """
        self._only(given, {"topic"})
        topic = self._named(given)
        return self._bounded(lambda: self._table(topic))

    def _table(self, topic: str) -> dict[str, Any]:
        image = self._metadata.image().topic(topic)
        remote = self._storage.remote_store("versions are those of a remote table")
        folder = paths.join(paths.topic_folder(image.name, image.topic_id), paths.DELTA_LOG)
        entries = sorted(one.name for one in remote.list(folder) if ENTRY.fullmatch(one.name.rpartition("/")[2]))
        if not entries:
            raise InvalidCallError(f"topic {topic!r} has no remote table")
        return {
            "topic": printable(topic),
            "versions": [_version(remote, one) for one in reversed(entries[-VERSIONS:])],
        }

    def _only(self, given: Given, known: set[str]) -> None:
        if unknown := given.keys() - known:
            raise InvalidCallError(
                f"unknown parameter {min(unknown)!r}; the parameters are {', '.join(sorted(known))}"
            )

    def _named(self, given: Given) -> str:
        if not given.get("topic"):
            raise InvalidCallError("name a topic")
        return given["topic"]

    def _bounded(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Runs the lookup in a separate thread. Storage that hangs blocks that thread, but not the reader."""
        if not self._free.acquire(blocking=False):
            raise BusyError(f"{MOST_AT_ONCE} lookups are running: try again in a few seconds")
        done: Future[dict[str, Any]] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)
            finally:
                self._free.release()

        threading.Thread(target=run, name="page-look", daemon=True).start()
        try:
            return done.result(self._timeout_s + 1)
        except TimeoutError as error:
            raise StoreTimeoutError(
                f"the lookup took longer than {self._timeout_s:g} s: try again later"
            ) from error


def _number(given: Given, name: str) -> int:
    text = given.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidCallError(f"{name} = {text!r}: give a number of 0 or more")
    return int(text)


def _type(schema: str | None) -> str:
    return printable(ddl(schema))[:MOST_CHARACTERS]


def _record(records: pa.Table, row: int) -> dict[str, Any]:
    time = as_it_is(records["timestamp"][row])
    headers = as_it_is(records["headers"][row]) or []
    return {
        "offset": records["offset"][row].as_py(),
        "time": time_text(time) or None,
        "key": _shown(as_it_is(records["key"][row])),
        "value": _shown(as_it_is(records["value"][row])),
        "headers": [[_shown(value) for value in _pair(one)] for one in headers[:MOST_HEADERS]],
        "more_headers": max(0, len(headers) - MOST_HEADERS),
    }


def _pair(header: Any) -> list[Any]:
    return list(header.values()) if isinstance(header, dict) else list(header)


def _shown(value: Any) -> dict[str, Any] | None:
    """The value as text, and the number of characters that are left out; None for null."""
    found = plain(value)
    if found is None:
        return None
    text = found if isinstance(found, str) else json.dumps(found, default=str, allow_nan=False, ensure_ascii=False)
    return {"text": printable(text[:MOST_CHARACTERS]), "cut": max(0, len(text) - MOST_CHARACTERS)}


def _version(remote: Store, name: str) -> dict[str, Any]:
    """One version of a table, given the name of its entry in the log."""
    version = int(name.rpartition("/")[2].removesuffix(".json"))
    unknown = {"version": version, "operation": None, "by": None, "when": None, "added": None, "removed": None}
    try:
        one = parse_commit(version, read_bounded(remote, name, MOST_ENTRY_BYTES), remote.uri_of(name))
    except (CorruptionError, FileNotFoundError):  # larger than the limit, damaged, or cleaned up meanwhile
        return unknown
    return {
        "version": version,
        "operation": printable(one.operation),
        "by": printable(" ".join(filter(None, (one.user, one.engine)))) or None,
        "when": printable(one.when or "") or None,
        "added": len(one.added),
        "removed": len(one.removed),
    }

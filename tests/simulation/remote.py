"""The table of a topic in the remote tier, in memory: Delta's promises without Delta. A version is put atomically
and exclusively; a driver without an answer reads again. The objects are in a simulated store like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from stratalog.partitions import paths
from stratalog.partitions.errors import CorruptionError, OutcomeUnknownError, StorageError
from stratalog.partitions.removal import Rule
from stratalog.partitions.store import Store
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.divergence import Histories
from stratalog.tiering.remote_change import CommittedBatch, TableChange
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_objects import RemovedFiles
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from tests.simulation.scheduler import Driver, Verdict

T = TypeVar("T")

_ATTEMPTS = 20
_NOBODYS = Histories()


@dataclass(slots=True)
class Table:
    version: int = -1
    live: dict[str, Uploaded] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    """The time when each path was removed."""
    rules: Mapping[int, Rule] = field(default_factory=dict)
    """The recorded rules of removal by partition."""
    erased: Mapping[int, int] = field(default_factory=dict)
    """The recorded erasures by partition."""
    begins: int = 0
    """The first version whose entry still exists."""
    deleted: bool = False
    """The mark of a topic that is to be deleted."""

    def put(self, version: int, change: TableChange, now_ms: int) -> bool:
        """Put the version after ``version``, unless it exists."""
        if self.version != version:
            return False
        self.version += 1
        if change.rules:
            self.rules = change.rules
        if change.erased is not None:
            self.erased = change.erased
        for segment in change.removes:
            del self.live[segment.path]
            self.removed[segment.path] = now_ms
        for upload in change.adds:
            self.live[upload.segment.path] = upload
            self.removed.pop(upload.segment.path, None)
        return True


class MemoryTopicTable(DeltaTopicTable):
    """A driver's view of the table of one topic."""

    def __init__(
        self,
        remote: Store,
        topic: str,
        topic_id: str,
        table: Table,
        driver: Driver,
        now_ms: Callable[[], int],
        send: Callable[[Callable[[], bool]], None],
    ) -> None:
        self.remote = remote
        self.topic = topic
        self.topic_id = topic_id
        self.folder = paths.topic_folder(topic, topic_id)
        self.uri = f"sim://remote/{self.folder}"
        self._table = table
        self._driver = driver
        self._now_ms = now_ms
        self._send = send

    def load(self) -> RemoteLog:
        if self._driver.point("table", "remote", "load") is Verdict.REFUSE:
            raise StorageError(f"cannot read the table {self.uri}")
        return self._log()

    def ensure(self, schema: pa.Schema) -> None:
        self._driver.point("table", "remote", "ensure")
        self._table.version = max(self._table.version, 0)

    def _commit(self, decision: Callable[[RemoteLog], TableChange | T]) -> tuple[T, frozenset[str]]:
        """See ``DeltaTopicTable._commit``: the same steps."""
        made: set[str] = set()
        for _ in range(_ATTEMPTS):
            log = self.load()
            if log.version < 0:
                raise CorruptionError(f"there is no table at {self.uri}")
            change = decision(log)
            if not isinstance(change, TableChange):
                return change, frozenset(made)
            self._put_version(log.version, change)
            made |= {upload.segment.path for upload in change.adds}
        raise OutcomeUnknownError(f"commits to {self.uri} failed {_ATTEMPTS} times")

    def load_with_removed(self, delay_ms: int) -> tuple[RemoteLog, RemovedFiles]:
        log = self.load()
        until = self._now_ms() - delay_ms
        ever = self._table.removed.items()
        return log, RemovedFiles(
            frozenset(path for path, _ in ever), frozenset(path for path, when in ever if when <= until)
        )

    def load_with_due(self, delay_ms: int) -> tuple[RemoteLog, frozenset[str]]:
        log, removed = self.load_with_removed(delay_ms)
        return log, removed.due

    def delete_history(self) -> int:
        version = self.load().version
        if self._driver.point("table", "remote", "history") is Verdict.REFUSE:
            raise StorageError(f"cannot write a checkpoint of the table {self.uri}")
        self._table.begins = max(self._table.begins, version)
        return version

    def mark_deleted(self, deleted: bool) -> None:
        if self._driver.point("table", "remote", "mark") is Verdict.REFUSE:
            raise StorageError(f"cannot mark the table {self.uri}")
        if self._table.version >= 0:
            self._table.deleted = deleted

    def is_marked_deleted(self) -> bool | None:
        self._driver.point("table", "remote", "mark")
        return None if self._table.version < 0 else self._table.deleted

    def delete(self) -> None:
        self.remote.delete([stored.name for stored in self.remote.walk(self.folder)])
        self._table.version = -1
        self._table.live.clear()
        self._table.removed.clear()
        self._table.rules, self._table.erased, self._table.begins = {}, {}, 0

    def _log(self) -> RemoteLog:
        if self._table.version < 0:
            return RemoteLog.empty(self.uri)
        segments = [upload.segment for upload in self._table.live.values()]
        return RemoteLog.of(
            self.uri, self._table.version, segments, rules=self._table.rules, erased=self._table.erased
        )

    def _put_version(self, version: int, change: TableChange) -> None:
        """Put the version after ``version``, unless it exists. The table itself gives the answer."""
        verdict = self._driver.point("commit", "remote", "table")
        if verdict is Verdict.LATE:
            self._send(lambda: self._table.put(version, change, self._now_ms()))
        elif verdict is not Verdict.REFUSE:
            self._table.put(version, change, self._now_ms())
        if verdict is Verdict.DIE_AFTER:
            self._driver.die()


class _Uncommitted(MemoryTopicTable):
    def commit(
        self, adds: Sequence[Uploaded], removes: Sequence[RemoteSegment] = (), histories: Histories = _NOBODYS
    ) -> CommittedBatch:
        raise StorageError(f"cannot reach the table {self.uri}")


def uncommitted(table: MemoryTopicTable) -> MemoryTopicTable:
    """The same table, for a driver that cannot commit to it."""
    known = table.remote, table.topic, table.topic_id, table._table, table._driver, table._now_ms, table._send
    return _Uncommitted(*known)

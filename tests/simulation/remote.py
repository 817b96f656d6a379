"""The table of a topic in the remote tier, in memory: Delta's promises without Delta. A version is put atomically
and exclusively; whoever gets no answer reads again. The objects are in a simulated store like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from partitions import paths
from partitions.errors import CorruptionError, OutcomeUnknownError, StorageError
from partitions.store import Store
from tests.simulation.scheduler import Driver, Verdict
from tiering.delta_table import Committed, DeltaTopicTable
from tiering.remote_log import RemoteLog
from tiering.remote_segment import RemoteSegment, Uploaded

_ATTEMPTS = 20


@dataclass(slots=True)
class Table:
    """The truth of one table."""

    version: int = -1
    live: dict[str, Uploaded] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    """When each path was removed."""


class MemoryTopicTable(DeltaTopicTable):
    """A driver's view of the table of one topic."""

    def __init__(
        self, remote: Store, topic: str, topic_id: str, table: Table, driver: Driver, now_ms: Callable[[], int]
    ) -> None:
        self.remote = remote
        self.topic = topic
        self.topic_id = topic_id
        self.folder = paths.topic_folder(topic, topic_id)
        self.uri = f"sim://remote/{self.folder}"
        self._table = table
        self._driver = driver
        self._now_ms = now_ms

    def load(self) -> RemoteLog:
        """See ``DeltaTopicTable.load``."""
        if self._driver.point("table", "remote", "load") is Verdict.REFUSE:
            raise StorageError(f"cannot read the table {self.uri}")
        return self._log()

    def ensure(self, schema: pa.Schema) -> None:
        """See ``DeltaTopicTable.ensure``."""
        self._driver.point("table", "remote", "ensure")
        self._table.version = max(self._table.version, 0)

    def commit(self, adds: Sequence[Uploaded], removes: Sequence[RemoteSegment] = ()) -> Committed:
        """See ``DeltaTopicTable.commit``: the same steps."""
        for _ in range(_ATTEMPTS):
            log = self.load()
            if log.version < 0:
                raise CorruptionError(f"there is no table at {self.uri}")
            needed = log.needed([upload.segment for upload in adds], removes)
            listed = {segment.path for segment in log.all_segments()}
            gone = [segment for segment in removes if segment.path in listed]
            if not needed and not gone:
                return Committed(
                    log,
                    tuple(upload for upload in adds if upload.segment.path in listed),
                    tuple(upload for upload in adds if upload.segment.path not in listed),
                )
            log.after(needed, gone, log.version + 1)
            self._put(log.version, [upload for upload in adds if upload.segment in needed], gone)
        raise OutcomeUnknownError(f"commits to {self.uri} failed {_ATTEMPTS} times")

    def expired_objects(self, delay_ms: int) -> list[str]:
        """See ``DeltaTopicTable.expired_objects``."""
        self._driver.point("table", "remote", "expired")
        until = self._now_ms() - delay_ms
        due = {self.folder + "/" + path for path, when in self._table.removed.items() if when <= until}
        due -= {self.folder + "/" + path for path in self._table.live}
        return sorted(due & {stored.name for stored in self.remote.list(self.folder)}) if due else []

    def delete(self) -> None:
        """See ``DeltaTopicTable.delete``."""
        self.remote.delete([stored.name for stored in self.remote.list(self.folder)])
        self._table.version = -1
        self._table.live.clear()
        self._table.removed.clear()

    def _log(self) -> RemoteLog:
        if self._table.version < 0:
            return RemoteLog.empty(self.uri)
        segments = [upload.segment for upload in self._table.live.values()]
        return RemoteLog.of(self.uri, self._table.version, segments)

    def _put(self, version: int, adds: Sequence[Uploaded], removes: Sequence[RemoteSegment]) -> None:
        """The version after ``version``, if nobody has put it. What is answered, the table itself tells."""
        verdict = self._driver.point("commit", "remote", "table")
        if verdict is Verdict.REFUSE or self._table.version != version:
            return
        self._table.version += 1
        for segment in removes:
            del self._table.live[segment.path]
            self._table.removed[segment.path] = self._now_ms()
        for upload in adds:
            self._table.live[upload.segment.path] = upload
            self._table.removed.pop(upload.segment.path, None)
        if verdict is Verdict.DIE_AFTER:
            self._driver.die()

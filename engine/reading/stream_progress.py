"""A stream's progress, told to a consumer group: what ``cluster.groups.lag(group)`` shows outside Spark.

For onlookers only: the stream itself goes on from its checkpoint. So the group never goes back, also where a query
is run again from an older checkpoint, and what goes wrong is said once and stops nobody.
"""

from __future__ import annotations

import logging

from stratalog.engine.driver.context import Context
from stratalog.engine.reading.stream_offsets import StreamOffsets
from stratalog.engine.records.groups import commit, committed
from stratalog.engine.state.group_commits import OffsetAndMetadata, check_group
from stratalog.partitions.errors import StratalogError

_log = logging.getLogger(__name__)


class StreamProgress:
    """Reports the positions of a stream to its group."""

    def __init__(self, context: Context, group: str) -> None:
        """Raises: InvalidGroupIdError."""
        check_group(group)
        self._context = context
        self._group = group
        self._reported: StreamOffsets | None = None
        self._warned = False

    def report(self, done: StreamOffsets) -> None:
        """Everything below these offsets is processed. Commits what is ahead of the group's offsets, in one append
        to its partition; nothing when nothing has changed since the last report.
        """
        if self._reported is not None and self._reported.partitions == done.partitions:
            return
        try:
            before = committed(self._context, self._group, list(done.topic_ids))
            ahead = {
                key: OffsetAndMetadata(position.offset, position.leader_epoch)
                for key, position in done.partitions.items()
                if key not in before or before[key].offset < position.offset
            }
            if ahead:
                commit(self._context, self._group, ahead)
            self._reported = done
        except StratalogError as error:
            if not self._warned:
                self._warned = True
                _log.warning(
                    "the stream continues, but its offsets were not committed to group %r, whose "
                    "lag is out of date: %s: %s",
                    self._group,
                    error.code,
                    error,
                )

"""Reads the snapshots of a topic again, and the files of the table that publishes them, for verify: searches them
for the keys of a certificate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.upkeep.erasing.certificate import ErasedPartition, ErasedTopic
from stratalog.engine.upkeep.erasing.copies import FileCopy
from stratalog.engine.upkeep.erasing.snapshot_tasks import may_be_later, snapshot_file
from stratalog.engine.upkeep.erasing.verify_iceberg import ERASED, NOT_ERASED, UNKNOWN
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.growth import fitted
from stratalog.partitions.paths import CheckpointName, base_name, parse_name
from stratalog.partitions.rewrites.wanted_keys import key_digests
from stratalog.partitions.rewrites.wanted_where import WantedWhere
from stratalog.partitions.segments.check import verify_bytes
from stratalog.partitions.segments.reader import read_batches, read_segment
from stratalog.tiering.published import published_batches


@dataclass(frozen=True, slots=True)
class SnapshotSearch:
    """The search for erased records in the snapshots of one topic."""

    topic: ErasedTopic
    condition: WantedWhere | None
    """The condition of the erasure; None if it had none, or if its text is unknown."""
    salt: bytes

    def state_of_file(self, copy: FileCopy, expected: ErasedPartition) -> tuple[str, str | None]:
        """The state of a snapshot, with the reason. A snapshot that follows the erasure, and ends after the
        offsets that were searched, may have records of the keys that were appended later.
        """
        name = parse_name(base_name(copy.object.name))
        if not isinstance(name, CheckpointName):
            return UNKNOWN, "it is a piece of a snapshot, whose content is unknown"
        follows = name.generation >= expected.generation
        if why := self._why_unsearched(follows):
            return why
        later = follows and may_be_later(name, expected.looked_to, expected.leader_epoch)
        try:
            file = snapshot_file(name, copy.object)
            verify_bytes(copy.store, file)
            footer = read_segment(copy.store, file).footer
            if later or not self._searches:
                return ERASED, None
            columns = ["key", "control"]
            rows = read_batches(copy.store, file, footer.base_offset, footer.next_offset, columns)
            records = (batch.filter(pc.is_null(batch.column("control"))) for batch in rows)
            if self._finds_in(records, str(name)):
                return NOT_ERASED, "it has a record of an erased key"
        except StratalogError as error:
            return UNKNOWN, f"{error}"
        return ERASED, None

    def state_of_published(self, copy: FileCopy, expected: ErasedPartition) -> tuple[str, str | None]:
        """The state of a file of the table, by the rule of ``state_of_file``; every row is read."""
        assert copy.published is not None
        follows = copy.published.generation >= expected.generation
        if why := self._why_unsearched(follows):
            return why
        later = follows and copy.published.end_offset > expected.looked_to
        try:
            records = published_batches(copy.store, copy.object)
            if not later and self._searches and self._finds_in(records, copy.object.name):
                return NOT_ERASED, "it has a record of an erased key"
            for _ in records:
                pass  # each row that was not searched is decoded
        except StratalogError as error:
            return UNKNOWN, f"{error}"
        return ERASED, None

    @property
    def _searches(self) -> bool:
        """Whether the records can be searched. Without the text of the condition, keys cannot be searched:
        other records of these keys may stay."""
        return self.condition is not None or (self.topic.where is None and bool(self.topic.key_digests))

    def _why_unsearched(self, follows: bool) -> tuple[str, str] | None:
        if self.condition is not None and self.condition.read.names != ["key"]:
            return UNKNOWN, "it is a snapshot, which can be searched only with a condition on the key"
        if not self._searches and not follows:
            return NOT_ERASED, "it does not follow the erasure"
        return None

    def _finds_in(self, records: Iterable[pa.RecordBatch], what: str) -> bool:
        digests = frozenset(self.topic.key_digests)
        for batch in records:
            rows = batch.select(["key"])
            if self.condition is not None:
                rows = rows.filter(pa.array(self.condition.selects(fitted(rows, self.condition.read, what))))
            if rows.num_rows and not digests:
                return True
            if not digests.isdisjoint(key_digests(rows.column("key"), self.salt)):
                return True
        return False

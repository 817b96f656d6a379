"""Finds the records in data files that a condition selects. Only row groups whose statistics allow a match are
read.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.columns import bools_of, integers, integers_of
from stratalog.partitions.growth import fitted
from stratalog.partitions.listing import DataFile
from stratalog.partitions.predicate import Predicate, may_select, paths_of, selected
from stratalog.partitions.records import ABORT, COMMIT, GAP
from stratalog.partitions.segment import read_row_groups, read_segment
from stratalog.partitions.store.protocol import Readable
from stratalog.partitions.wanted_keys import WantedKeys
from stratalog.partitions.where import parse_where

_NO_RECORDS = integers(np.array([ABORT, COMMIT, GAP])).cast(pa.int32())


class RecordFinder(Protocol):
    """Finds records of one topic: ``WantedKeys`` or ``WantedWhere``."""

    def offsets_in(self, source: Readable, file: DataFile, start: int, end: int) -> Iterator[int]:
        """The offsets of the wanted records in ``[start, end)`` of a data file, ascending."""
        ...


@dataclass(frozen=True)
class WantedWhere:
    """The records of one topic that a condition selects."""

    text: str
    predicate: Predicate
    schema: pa.Schema
    """The current schema of the topic; older files have fewer fields, or narrower types."""
    keys: WantedKeys | None = None
    """If given, only records with one of these keys."""
    before_us: int | None = None
    """Only records before this time, in microseconds since 1970, or without a timestamp; None: all."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition reads, with dots, sorted."""
        return tuple(sorted({".".join(path) for path in paths_of(self.predicate)}))

    def digest(self, salt: bytes) -> str:
        """The keyed digest of the condition's text."""
        return where_digest(self.text, salt)

    def offsets_in(self, source: Readable, file: DataFile, start: int, end: int) -> Iterator[int]:
        """The offsets in ``[start, end)`` of a data file at which the condition is true, ascending. Records of
        aborted transactions are included. Gaps and markers, which have no columns, are not.

        Raises: see ``read_row_groups``.
        """
        segment = read_segment(source, file)
        chosen = {
            group.first
            for index, group in enumerate(segment.row_groups)
            if may_select(self.predicate, segment.parquet.row_group(index))
            and (self.keys is None or self.keys.may_hold(segment, index))
        }
        names = {path[0] for path in paths_of(self.predicate)}
        names |= {"offset", "control"}
        names |= {"key"} if self.keys is not None else set()
        names |= {"timestamp"} if self.before_us is not None else set()
        columns = [name for name in self.schema.names if name in names]
        schema = pa.schema([self.schema.field(name) for name in columns])
        for _, table in read_row_groups(source, file, start, end, columns, lambda group: group.first in chosen):
            for batch in table.select(columns).to_batches():
                records = fitted(batch, schema, segment.what)
                held = bools_of(pc.fill_null(selected(self.predicate, records), False))
                held &= ~bools_of(pc.is_in(records.column("control"), value_set=_NO_RECORDS))
                if self.before_us is not None:
                    times = records.column("timestamp").cast(pa.int64())
                    held &= bools_of(pc.fill_null(pc.less(times, self.before_us), True))
                if self.keys is not None and held.any():
                    held &= self.keys.matches(records.column("key"))
                yield from integers_of(records.column("offset"))[np.flatnonzero(held)].tolist()


def where_digest(text: str, salt: bytes) -> str:
    """The HMAC-SHA256 of the text of a condition."""
    return hmac.new(salt, text.encode(), hashlib.sha256).hexdigest()


def wanted_where(
    text: str, schema: pa.Schema, what: str, keys: WantedKeys | None = None, before_us: int | None = None
) -> WantedWhere:
    """The condition of a text as ``WantedWhere``. Raises: see ``parse_where``."""
    return WantedWhere(text, parse_where(text, schema, what), schema, keys, before_us)

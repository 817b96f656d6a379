"""Finds the records in data files that a condition selects. Only row groups whose statistics allow a match are
read.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.columns import bools_of, integers, integers_of
from stratalog.partitions.growth import fitted
from stratalog.partitions.listing import DataFile
from stratalog.partitions.records import ABORTED
from stratalog.partitions.rewrites.predicate import Predicate, may_select, paths_of, selected
from stratalog.partitions.rewrites.wanted_keys import WantedKeys, is_before
from stratalog.partitions.rewrites.where import parse_where
from stratalog.partitions.segments.reader import read_row_groups, read_segment
from stratalog.partitions.store.protocol import Readable

# Not pa.array of a list, which would import pandas.
_RECORDS = pa.concat_arrays([pa.nulls(1, pa.int32()), integers(np.array([ABORTED])).cast(pa.int32())])
"""``control`` of records. Markers, gaps, and the first and the last row of a snapshot have other numbers."""


class RecordFinder(Protocol):
    """Finds records of one topic: ``WantedKeys`` or ``WantedWhere``."""

    def offsets_in(self, source: Readable, file: DataFile, start: int, end: int) -> Iterator[int]:
        """The offsets of the wanted records in ``[start, end)`` of a data file, ascending."""
        ...

    @property
    def read(self) -> pa.Schema:
        """The columns that decide whether a record is wanted, with the topic's types."""
        ...

    def selects(self, records: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """A boolean for each record of a batch that has at least these columns."""
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
        aborted transactions are included. Gaps, markers and the control rows of a snapshot are not.

        Raises: see ``read_row_groups``.
        """
        segment = read_segment(source, file)
        chosen = {
            group.first
            for index, group in enumerate(segment.row_groups)
            if may_select(self.predicate, segment.parquet.row_group(index))
            and (self.keys is None or self.keys.may_hold(segment, index))
        }
        schema = self._columns({*self.read.names, "offset", "control"})
        columns = schema.names
        for _, table in read_row_groups(source, file, start, end, columns, lambda group: group.first in chosen):
            for batch in table.select(columns).to_batches():
                records = fitted(batch, schema, segment.what)
                held = self.selects(records)
                held &= bools_of(pc.is_in(records.column("control"), value_set=_RECORDS))
                yield from integers_of(records.column("offset"))[np.flatnonzero(held)].tolist()

    @property
    def read(self) -> pa.Schema:
        """See ``RecordFinder``."""
        names = {path[0] for path in paths_of(self.predicate)}
        names |= {"key"} if self.keys is not None else set()
        names |= {"timestamp"} if self.before_us is not None else set()
        return self._columns(names)

    def _columns(self, names: Container[str]) -> pa.Schema:
        return pa.schema([field for field in self.schema if field.name in names])

    def selects(self, records: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """See ``RecordFinder``."""
        held = bools_of(pc.fill_null(selected(self.predicate, records), False))
        if self.before_us is not None:
            held &= is_before(records, self.before_us)
        if self.keys is not None and held.any():
            held &= self.keys.matches(records.column("key"))
        return held


def where_digest(text: str, salt: bytes) -> str:
    """The HMAC-SHA256 of the text of a condition."""
    return hmac.new(salt, text.encode(), hashlib.sha256).hexdigest()


def wanted_where(
    text: str, schema: pa.Schema, what: str, keys: WantedKeys | None = None, before_us: int | None = None
) -> WantedWhere:
    """The condition of a text as ``WantedWhere``. Raises: see ``parse_where``."""
    return WantedWhere(text, parse_where(text, schema, what), schema, keys, before_us)

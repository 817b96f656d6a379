"""A log as the scripts of this folder use it: few operations, plain answers, the same here and in Kafka.

Every refused operation returns Kafka's name of the error as a text, and raises nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

Code: TypeAlias = str
"""Kafka's name of an error."""

Trace: TypeAlias = list[object]
"""The answers of a script, in the order of its steps."""

LATER_MS = 4_102_444_800_000
"""The year 2100, later than all markers of transactions, which have the time of the machine."""


class At(Enum):
    """Named positions of ListOffsets."""

    EARLIEST = "earliest"
    LATEST = "latest"
    MAX_TIMESTAMP = "max timestamp"
    EARLIEST_LOCAL = "earliest local"
    LATEST_TIERED = "latest tiered"
    EARLIEST_PENDING_UPLOAD = "earliest pending upload"


class Found(NamedTuple):
    """A position by time: the record's offset and timestamp, in milliseconds."""

    offset: int
    time_ms: int


class Got(NamedTuple):
    """The result of a read: values by offset, and the next offset."""

    records: dict[int, str]
    position: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a group for a partition."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class Transaction(Protocol):
    """One transaction of a transactional id."""

    def append(self, topic: str, values: Sequence[str], partition: int = 0) -> list[int] | Code:
        """Append like ``Log.append``."""

    def commit_offsets(self, group: str, offsets: Mapping[int, int], topic: str) -> Code | None:
        """Commit offsets of a group by partition, which take effect when the transaction is committed."""

    def commit(self) -> Code | None:
        """Commit, and wait for the markers."""

    def abort(self) -> Code | None:
        """Abort, and wait for the markers."""

    def time_out(self) -> None:
        """Let its timeout pass, so that the cluster aborts it."""


class Log(Protocol):
    """A cluster with one broker and its own names: two logs do not see each other's topics, groups and ids."""

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> Code | None:
        """Create a topic."""

    def create_partitions(self, topic: str, partitions: int) -> Code | None:
        """Increase the topic to this number of partitions."""

    def alter_configs(self, topic: str, configs: Mapping[str, str]) -> Code | None:
        """Set configs of a topic."""

    def delete_topic(self, topic: str) -> Code | None:
        """Delete a topic."""

    def append(
        self, topic: str, values: Sequence[str], partition: int = 0, times_ms: Sequence[int] = ()
    ) -> list[int] | Code:
        """Append records in one batch, with these times (by default in the year 2100, one millisecond apart), and
        return their offsets."""

    def append_as(
        self, producer: int, sequence: int, value: str, topic: str = "t", *, epoch: int = 0
    ) -> list[int] | Code:
        """Append one record to partition 0 as the producer of that id, so that a sequence counts both records and
        appends. Returns its offset; None if it is a duplicate whose offset is no longer known.
        """

    def read(self, topic: str, start: int = 0, partition: int = 0, *, committed: bool = False) -> Got | Code:
        """Read from an offset to the end, also with the isolation level read_committed."""

    def list_offsets(
        self, topic: str, at: At | int, *, committed: bool = False
    ) -> dict[int, int | Found | None] | Code:
        """Look up a named position, or the first record at or after a time in milliseconds, by partition; None if
        there is no such record."""

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int] | Code:
        """Delete the records below these offsets, by partition, and return the low watermarks."""

    def retain(self) -> None:
        """Let retention run."""

    def tier(self, topic: str, until: tuple[At, int]) -> None:
        """Upload sealed segments to the remote tier, and let retention run in both tiers. Kafka does so at its own
        times, so the call waits ``until`` a position has that offset."""

    def pass_time(self, ms: int) -> None:
        """Let this time pass before the next append, and upload sealed segments meanwhile. (Kafka uses the times
        of records.)"""

    def transaction(self, transactional_id: str, *, anew: bool = False, timeout_ms: int = 60_000) -> Transaction:
        """Begin a transaction; ``anew``: as another incarnation of the producer, which takes over the id."""

    def commit(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        metadata: str = "",
        leader_epoch: int | None = None,
    ) -> Code | None:
        """Commit offsets of a group, by partition, without a member."""

    def committed(
        self, group: str, topic: str, partitions: Sequence[int] = (0,), *, require_stable: bool = False
    ) -> dict[int, Committed] | Code:
        """The committed offsets of a group, for the partitions that have one."""

    def delete_group(self, group: str) -> Code | None:
        """Delete a group."""

    def groups(self) -> set[str]:
        """Every group with committed offsets."""

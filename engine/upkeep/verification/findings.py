"""The findings of a partition, as errors for people and as damage for ``heal``; and the files that are known to be
good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from stratalog.engine.replicas.repair import Copy, Damage, Place
from stratalog.partitions.errors import CorruptSegmentError, StratalogError
from stratalog.partitions.paths import DataName
from stratalog.partitions.store import LEFT_ALONE, Store, StoredObject

_NO_MAJORITY = "; no majority of the copies agrees: compare the copies yourself"
_REMOTE_DIFFERS = (
    "; the checksums of the remote object and of the brokers' files are valid, so one of them was restored from "
    "another history. An operator must decide which history is right: see stratalog history, and the versions of "
    "the remote table"
)
_FOREIGN = "a foreign file: stratalog never writes such a name, and leaves the file unchanged"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem and its place."""

    where: str
    error: StratalogError
    broker_id: Place = None
    """The broker whose storage has the problem; None for the remote tier."""
    damage: Damage | None = None
    """The damage that a heal can repair; None if an operator is needed."""
    log_is_whole: bool = False
    """Whether the log does not need the file, because it is foreign or was discarded."""
    of_snapshot: bool = False
    """Whether a snapshot of the replica is damaged or missing. Such a replica can stay in the ISR while an intact
    snapshot is copied to it.
    """
    unused: bool = False
    """Whether no log uses the file. Such a finding is a note, not a failure."""

    @property
    def is_sure(self) -> bool:
        """Whether one check is enough, as for findings about bytes and sizes of listed objects, which do not
        change. All other findings may be transient, or depend on several listings.
        """
        return isinstance(self.error, CorruptSegmentError)

    @property
    def signature(self) -> tuple[str, str]:
        """The place and the message, which identify the finding in every check."""
        return self.where, str(self.error)

    @property
    def of_remote(self) -> bool:
        """Whether the problem is damage of the remote tier."""
        return self.broker_id is None and self.damage is not None


def foreign_file(store: Store, stored: StoredObject) -> CorruptSegmentError:
    """The error for an object in one of the log's folders that has a foreign name, or is not a file."""
    what = f"{stored.special}: {LEFT_ALONE}" if stored.special else _FOREIGN
    return CorruptSegmentError(f"{store.uri_of(stored.name)} is {what}")


def other_records(partition: str, first: int, leader: int | None) -> CorruptSegmentError:
    """The error for a leader and a remote log that have different records starting at an offset."""
    return CorruptSegmentError(
        f"{partition}: from offset {first} on, the partition's leader, broker {leader}, and "
        f"its remote log have different records under the same leader epochs{_REMOTE_DIFFERS}"
    )


def offsets(start: int, end: int) -> str:
    return f"offsets [{start}, {end})"


def odd_copies(copies: Iterable[Copy], leader: Place) -> Iterator[tuple[Copy, bool, CorruptSegmentError]]:
    """The copies of one name that differ from the other copies, although each copy is intact by itself; and
    whether a majority of the copies agrees on the right content. Without such a majority the right content is
    unknown, and the result is all copies that differ from the leader's copy.

    The object of the remote tier is never outvoted: its own checksums hold, and all replicas may have been
    restored from an older copy. If the replicas agree on content that differs from this object's, the right
    content is unknown, too.

    A merged segment of the remote tier is not a copy: its records may have been encoded there independently, so
    they are compared as records (``audit``).
    """
    by_name: dict[DataName, list[Copy]] = {}
    for copy in copies:
        if copy.place is not None or not copy.held.name.merged:
            by_name.setdefault(copy.held.name, []).append(copy)
    for name in sorted(by_name):
        found = by_name[name]
        votes = Counter(copy.content for copy in found)
        if len(votes) == 1:
            continue
        expected = _expected(votes, {copy.place: copy.content for copy in found}, leader)
        remote_differs = any(copy.place is None and copy.content != expected for copy in found)
        agreed = votes[expected] * 2 > len(found) and not remote_differs
        those = sorted("the remote tier" if c.place is None else f"broker {c.place}" for c in found)
        for copy in found:
            if copy.content != expected:
                held = copy.held
                yield (
                    copy,
                    agreed,
                    CorruptSegmentError(
                        f"{copy.store.uri_of(held.file.object.name)}: {offsets(held.start, held.end)}: its "
                        f"content ({held.size_bytes} bytes) differs from that of its copies ({', '.join(those)})"
                        + ("" if agreed else _REMOTE_DIFFERS if remote_differs else _NO_MAJORITY)
                    ),
                )


def _expected(votes: Counter[int], contents: Mapping[Place, int], leader: Place) -> int:
    ((first, most), *rest) = votes.most_common()
    if rest and rest[0][1] == most and leader is not None and leader in contents:
        return contents[leader]
    return first

"""What is wrong with a partition: for people as an error, for a heal as a damage. And what is known to be good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from partitions.errors import CorruptSegmentError, StratalogError
from partitions.listing import DataFile
from partitions.paths import DataName
from partitions.store import Store

Place = int | None
"""Where a copy lies: a broker, or None for the remote tier."""


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file of the log that is not as it was written; with it the log lacks offsets ``[start, end)``. In the
    remote tier also one that is not there.
    """

    file: DataFile
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets ``[start, end)`` that the replica must have, and no file of it holds."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BadEpoch:
    """The register of the greatest leader epoch is damaged, or (with files of that epoch there) missing."""

    epoch: int


@dataclass(frozen=True, slots=True)
class BadLocalStart:
    """The register of the local log start is damaged: its name says where the log begins, its content, which is
    lost, what producers had appended by then.
    """

    offset: int


Damage = BadFile | Missing | BadEpoch | BadLocalStart
"""What a heal can mend, if there is something to mend it with."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, and where."""

    where: str
    error: StratalogError
    broker_id: Place = None
    """Whose storage it is; None for the remote tier."""
    damage: Damage | None = None
    """None where no heal may help: a person has to look."""
    log_is_whole: bool = False
    """The log does not need what is wrong: a foreign file, or one that was discarded."""
    of_snapshot: bool = False
    """A snapshot of the replica is damaged, or gone: nobody steps aside for a whole copy."""
    unused: bool = False
    """A file that no log uses: worth a note, and no failure."""

    @property
    def is_sure(self) -> bool:
        """Bytes and sizes of listed objects stay as they were found. All else is compared between listings, or
        may pass."""
        return isinstance(self.error, CorruptSegmentError)

    @property
    def said(self) -> tuple[str, str]:
        """Where, and what: the same of the same thing in every look."""
        return self.where, str(self.error)

    @property
    def of_remote(self) -> bool:
        """Whether it is damage of the remote tier."""
        return self.broker_id is None and self.damage is not None


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file at some place; by its footer it holds offsets ``[start, end)``."""

    file: DataFile
    start: int
    end: int

    @property
    def name(self) -> DataName:
        """The name of the file."""
        return self.file.name

    @property
    def size_bytes(self) -> int:
        """Its size, as listed."""
        return self.file.object.size_bytes


@dataclass(frozen=True, slots=True)
class Copy:
    """A file in which nothing wrong was found. ``content`` is equal for equal files: the CRC-32 of all bytes,
    or only their number where nobody has read them.
    """

    place: Place
    store: Store
    held: HeldFile
    content: int


def offsets(start: int, end: int) -> str:
    """How messages name a range."""
    return f"offsets [{start}, {end})"


def odd_copies(copies: Iterable[Copy], leader: Place) -> Iterator[tuple[Copy, bool, CorruptSegmentError]]:
    """Copies of one name that differ from the others, though each by itself looks good; and whether most of
    the others agree on what it should be. Without such a majority nobody can tell which one is right: then it
    is those that differ from the leader's.

    A merged segment of the remote tier is no copy: the same records may have been encoded there by themselves.
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
        agreed = votes[expected] * 2 > len(found)
        those = sorted("the remote tier" if c.place is None else f"broker {c.place}" for c in found)
        for copy in found:
            if copy.content != expected:
                held = copy.held
                yield (
                    copy,
                    agreed,
                    CorruptSegmentError(
                        f"{copy.store.uri_of(held.file.object.name)}: {offsets(held.start, held.end)}: "
                        f"{held.size_bytes} bytes, other ones than its copies ({', '.join(those)}) have"
                        + ("" if agreed else "; no majority of them agrees, compare them by hand")
                    ),
                )


def _expected(votes: Counter[int], contents: Mapping[Place, int], leader: Place) -> int:
    ((first, most), *rest) = votes.most_common()
    if rest and rest[0][1] == most and leader is not None and leader in contents:
        return contents[leader]
    return first

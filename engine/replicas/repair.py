"""Damage of a replica, the files that are known to be good, and which of them mend what. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import DataName
from stratalog.partitions.store import Store

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
    """The register of a leader epoch is damaged, or (the greatest one, with files of that epoch there) missing."""

    epoch: int
    needed: bool = True
    """False: it is to go. Its epoch is above all that were ever committed; or nobody can read it, and the register
    of a later epoch that the replica has joined is whole, which says all of it."""


@dataclass(frozen=True, slots=True)
class BadLocalStart:
    """The register of the local log start is damaged: its name says where the log begins, its content, which is
    lost, what producers had appended by then.
    """

    offset: int


Damage = BadFile | Missing | BadEpoch | BadLocalStart
"""Damage that a heal can mend, if there is something to mend it with."""


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

    def is_of(self, lineage: Lineage) -> bool:
        """Whether its records are of this history, by its name."""
        name = self.held.name
        last = name.base_offset if name.next_offset is None else name.next_offset - 1
        return lineage.epoch_at(last) == name.epoch


@dataclass(frozen=True, slots=True)
class Repair:
    """Mend one damage of one replica."""

    broker_id: int
    damage: Damage
    put: tuple[Copy, ...]
    """Files that the replica gets, in order. None for a register, or where the leader's log begins above."""
    register_of: int | None = None
    """Whose register takes the place of a damaged one; None: the leader's."""
    starts_over: bool = False
    """The replica's log begins where its leader's does from now on; below that it got nothing."""
    forgotten: bool = False
    """The bad file reaches beyond what the member holds that leads from now on. It is not deleted: it leaves the
    log as the replica joins that leader's epoch, or stays where a late copy has brought that leader its records.
    """
    state_of: Copy | None = None
    """The file that ends at a damaged local start: its footer says what the register said."""

    @property
    def sources(self) -> str:
        """Where the files come from, for people."""
        places = dict.fromkeys(copy.place for copy in (*self.put, *([self.state_of] if self.state_of else ())))
        if self.register_of is not None:
            return f"broker-{self.register_of}"
        return " ".join("remote" if place is None else f"broker-{place}" for place in places) or "leader"

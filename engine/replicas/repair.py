"""Damage of a replica, files that are known to be good, and the choice of repairs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import DataName
from stratalog.partitions.store import Store

Place = int | None
"""The place of a copy: a broker, or None for the remote tier."""


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file of the log whose bytes differ from the bytes that were written; in the remote tier, also a missing
    file. Without this file the log lacks offsets ``[start, end)``.
    """

    file: DataFile
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets ``[start, end)`` that the replica must have, but that none of its files has."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BadEpoch:
    """A damaged register of a leader epoch; or the missing register of the greatest epoch, if the replica has
    files of that epoch.
    """

    epoch: int
    needed: bool = True
    """False: delete the register. Its epoch is above all committed epochs; or the register is unreadable, and the
    intact register of a later epoch that the replica has joined contains all of it.
    """


@dataclass(frozen=True, slots=True)
class BadLocalStart:
    """A damaged register of the local log start. The register's name still has the start of the log, but its
    content, the producer state at that offset, is lost.
    """

    offset: int


Damage = BadFile | Missing | BadEpoch | BadLocalStart
"""Damage that a heal can repair, given a good copy."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file at some place. According to its footer it holds offsets ``[start, end)``."""

    file: DataFile
    start: int
    end: int

    @property
    def name(self) -> DataName:
        return self.file.name

    @property
    def size_bytes(self) -> int:
        return self.file.object.size_bytes


@dataclass(frozen=True, slots=True)
class Copy:
    """A file without known damage. ``content`` is equal for equal files: the CRC-32 of all bytes, or only the
    number of bytes if they were not read.
    """

    place: Place
    store: Store
    held: HeldFile
    content: int


@dataclass(frozen=True, slots=True)
class Repair:
    """The repair of one damaged part of one replica."""

    broker_id: int
    damage: Damage
    put: tuple[Copy, ...]
    """Files for the replica, in order. Empty for a register, or if the leader's log begins above the damage."""
    register_of: int | None = None
    """The replica whose register replaces the damaged register; None: the leader."""
    starts_over: bool = False
    """Whether the replica's log then begins at its leader's start, without files below it."""
    forgotten: bool = False
    """Whether the damaged file extends beyond the current leader's records. Such a file is not deleted. When the
    replica joins that leader's epoch, the file leaves the log, unless a late copy has added the file's records to
    that leader's log.
    """
    state_of: Copy | None = None
    """The file that ends at a damaged local start; its footer has the register's content."""

    @property
    def sources(self) -> str:
        """The sources of the files, as text."""
        places = dict.fromkeys(copy.place for copy in (*self.put, *([self.state_of] if self.state_of else ())))
        if self.register_of is not None:
            return f"broker-{self.register_of}"
        return " ".join("remote" if place is None else f"broker-{place}" for place in places) or "leader"

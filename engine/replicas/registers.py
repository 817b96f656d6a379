"""Reads the registers of a replica: ``.epoch`` registers give lineages; the local start's register gives the
producers.
"""

from __future__ import annotations

from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.errors import CorruptionError, SourceChangedError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Listing
from stratalog.partitions.paths import EpochName, LocalStartName
from stratalog.partitions.producers import decode
from stratalog.partitions.register import REGISTER_BYTES
from stratalog.partitions.replica import Replica


def lineage_of(replica: Replica, listing: Listing) -> Lineage:
    """The lineage of the greatest epoch that the replica has joined, as stored now.

    Raises: CorruptionError when the register of that epoch is damaged, or is missing although files of the epoch
    exist: a writer joins the epoch before it writes files.
    """
    joined = listing.joined_epoch
    named = [(file.name.epoch, str(file.name)) for file in listing.data]
    named += [(mark.epoch, str(mark)) for mark in listing.watermarks]
    epoch, name = max(named, default=(0, ""))
    if epoch > joined:
        raise CorruptionError(
            f"{replica}: the register {EpochName(epoch)} is missing: {name} exists, but the replica seems to have "
            f"joined only epoch {joined}"
        )
    return (
        parsed_epoch(replica, EpochName(joined), read_register(replica, EpochName(joined)))
        if joined
        else Lineage()
    )


def parsed_epoch(replica: Replica, name: EpochName, data: bytes) -> Lineage:
    """The content of an ``.epoch`` register. Raises: CorruptionError."""
    what = replica.store.uri_of(replica.path(name))
    lineage = Lineage.from_json(data, what)
    if lineage.latest_epoch != name.epoch:
        raise CorruptionError(f"{what} must end with epoch {name.epoch}, but ends with {lineage.latest_epoch}")
    return lineage


def read_register(replica: Replica, name: EpochName | LocalStartName) -> bytes:
    """The content of a register. Raises: SourceChangedError when the register is gone."""
    try:
        return read_bounded(replica.store, replica.path(name), REGISTER_BYTES)
    except FileNotFoundError as error:
        raise SourceChangedError(f"{replica}: {name} has been deleted since it was listed") from error


def local_start_state(replica: Replica, name: LocalStartName) -> bytes:
    """The content of the local start's register: the producer state at that offset. Raises: CorruptionError,
    SourceChangedError.
    """
    content = read_register(replica, name)
    try:
        decode(content)
    except ValueError as error:
        what = replica.store.uri_of(replica.path(name))
        raise CorruptionError(f"{what} is damaged: it lacks the state of producers") from error
    return content

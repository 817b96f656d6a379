"""The small files of a replica: what it has joined, how far it is committed, where it starts.

Their names say nearly all; what stands in them is compared here. A damaged one is not guessed at.
"""

from __future__ import annotations

from engine.operations.verification.findings import BadEpoch, BadLocalStart, Finding
from partitions.errors import CorruptionError, SourceChangedError, StratalogError
from partitions.lineage import Lineage
from partitions.listing import Listing
from partitions.paths import EpochName, LocalStartName, WatermarkName, name_in, parse_name
from partitions.producers import decode
from partitions.replica import Replica

_HUMAN = "; call a human: nothing tells what should stand there"


def lineage_of(replica: Replica, listing: Listing) -> Lineage:
    """The lineage of the greatest epoch that the replica has joined, as storage holds it now.

    Raises: CorruptionError when its register is damaged; or is missing, and files of its epoch are there: who
        writes one has joined the epoch before.
    """
    joined = listing.joined_epoch
    named = [(file.name.epoch, str(file.name)) for file in listing.data]
    named += [(mark.epoch, str(mark)) for mark in listing.watermarks]
    epoch, name = max(named, default=(0, ""))
    if epoch > joined:
        raise CorruptionError(
            f"{replica}: the register {EpochName(epoch)} is missing: {name} is there, and the replica seems to "
            f"have joined epoch {joined} only"
        )
    return (
        parsed_epoch(replica, EpochName(joined), read_register(replica, EpochName(joined)))
        if joined
        else Lineage()
    )


def parsed_epoch(replica: Replica, name: EpochName, data: bytes) -> Lineage:
    """What stands in an ``.epoch`` register. Raises: CorruptionError."""
    what = replica.store.uri_of(replica.path(name))
    lineage = Lineage.from_json(data, what)
    if lineage.latest_epoch != name.epoch:
        raise CorruptionError(f"{what} must end with epoch {name.epoch}, its last one is {lineage.latest_epoch}")
    return lineage


def read_register(replica: Replica, name: EpochName | LocalStartName) -> bytes:
    """Raises: SourceChangedError when it is gone."""
    try:
        return replica.store.read(replica.path(name))
    except FileNotFoundError as error:
        raise SourceChangedError(f"{replica}: {name} was deleted since it was listed") from error


def check_registers(replica: Replica, leader: Replica | None) -> list[Finding]:
    """Read every register of a replica; epochs are compared with the leader's of the same name."""
    found: list[Finding] = []
    folder = replica.folder

    def note(error: StratalogError, damage: BadEpoch | BadLocalStart | None = None) -> None:
        found.append(Finding(str(replica), error, replica.broker_id, damage))

    try:
        objects = replica.store.list(folder)
    except StratalogError as error:
        note(error)
        return found
    names = [(parse_name(name_in(folder, stored.name)), stored) for stored in objects]
    joined = max((name.epoch for name, _ in names if isinstance(name, EpochName)), default=0)
    start = max((name.offset for name, _ in names if isinstance(name, LocalStartName)), default=0)
    for name, stored in names:
        what = replica.store.uri_of(stored.name)
        try:
            match name:
                case WatermarkName() if stored.size_bytes:
                    note(CorruptionError(f"{what} has {stored.size_bytes} bytes, and must be empty{_HUMAN}"))
                case LocalStartName(offset) if offset == start:
                    local_start_state(replica, name)
                case EpochName(epoch) if epoch < joined:  # the greatest one was read with the lineage
                    _check_epoch(replica, name, leader)
        except SourceChangedError:
            continue  # retention took it away
        except CorruptionError as error:
            match name:
                case EpochName(epoch):
                    note(error, BadEpoch(epoch))
                case LocalStartName(offset):
                    note(error, BadLocalStart(offset))
                case _:
                    note(error)
        except StratalogError as error:
            note(error)
    return found


def local_start_state(replica: Replica, name: LocalStartName) -> bytes:
    """The register's content, which says what producers had appended by then. Raises: CorruptionError,
    SourceChangedError.
    """
    content = read_register(replica, name)
    try:
        decode(content)
    except ValueError as error:
        what = replica.store.uri_of(replica.path(name))
        raise CorruptionError(f"{what} is damaged: it does not say what producers had appended") from error
    return content


def _check_epoch(replica: Replica, name: EpochName, leader: Replica | None) -> None:
    """An epoch before the last one that was joined: it decides nothing any more, and must be whole."""
    data = read_register(replica, name)
    parsed_epoch(replica, name, data)
    if leader is None or leader.broker_id == replica.broker_id:
        return
    try:
        expected = leader.store.read(leader.path(name))
        parsed_epoch(leader, name, expected)
    except (FileNotFoundError, CorruptionError):
        return  # the leader was not there in that epoch, or it is the leader's that is damaged
    if data != expected:
        raise CorruptionError(
            f"{replica.store.uri_of(replica.path(name))} has another lineage than on the leader, broker "
            f"{leader.broker_id}: {data[:80]!r}"
        )

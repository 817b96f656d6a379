"""Producer state, which ensures that a retried, speculative or repeated append is stored once (KIP-98's
idempotence).

The state is cumulative: it has the epoch, the last sequence, and the offsets of that sequence for each producer.
The footer of every data file contains the state, or its changes (``producer_changes``). One sequence is one append
to the partition; gaps are allowed, since a micro-batch may have no records for a partition. Pure.

For named producers the state contains more, because their appends may be repeated much later: a scheduler reruns a
day, a stream continues from a checkpoint. Offsets and digests of the last five appends (as in Kafka) show whether
a repeated append has the same records. Runs of sequences, which stay small for a long time, show whether an older
sequence was appended at all. If the sequence was appended, but its records can no longer be compared, the append
is refused. An append that arrives too late is also refused. The answer never claims more than is known.

For a transactional producer the state also contains the start of its open transaction. Each transaction has its
own producer epoch (KIP-890): the decision to end it raises the epoch by one, and the marker has the raised epoch.
From then on, a late append of the ended transaction has an outdated epoch, and a late marker finds that the
producer has a later epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import astuple, force_setattr, replace

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import (
    ChangedReplayError,
    DuplicateSequenceNumberError,
    InvalidCallError,
    InvalidProducerEpochError,
    OutOfOrderSequenceNumberError,
)
from stratalog.partitions.identity import NewId, is_id
from stratalog.partitions.numbers import Int64, whole
from stratalog.partitions.records import ABORT, COMMIT
from stratalog.partitions.register import sealed, unsealed

LAST_APPENDS = 5
"""The number of a producer's appends whose offsets and digests are remembered, as in Kafka."""
MOST_RUNS = 128
"""The maximum number of lengths in ``ProducerEntry.runs``: enough for five years of a daily append whose sequence
is its date.
"""

Acks = Literal["all", "leader"]
"""The replicas that must have the records of an append before it is acknowledged."""
OnChangedReplay = Literal["refuse", "accept"]
"""The policy for a sequence that is repeated with different records."""


class PastAppend(msgspec.Struct, frozen=True, array_like=True):
    """An append of a producer before its last append; see ``ProducerEntry``."""

    sequence: Int64
    base_offset: Int64
    next_offset: Int64
    digest: bytes | None = None
    partition_count: Int64 | None = None


class ProducerEntry(msgspec.Struct, frozen=True, array_like=True):
    """The last append of one producer: its epoch, sequence, offsets ``[base, next)`` and time (wall clock). The
    entry of a named producer also has the earlier appends.
    """

    epoch: Int64
    sequence: Int64
    base_offset: Int64
    next_offset: Int64
    appended_ms: Int64
    txn_first_offset: Int64 | None = None
    """The start of the producer's open transaction in this partition (Kafka's currentTxnFirstOffset); None if none
    is open.
    """
    partition_count: Int64 | None = None
    """The partition count by which keys were assigned to partitions; None if the caller gave the partitions."""
    digest: bytes | None = None
    """The digest of the records (``stratalog.partitions.digest``); None if they are not compared."""
    earlier: tuple[PastAppend, ...] = ()
    """The earlier appends, latest first."""
    runs: tuple[Int64, ...] = ()
    """The lengths of runs of sequences, from the last sequence downwards. Runs of appended sequences alternate
    with runs of sequences that were not appended, and the first run was appended. If the number of runs is odd,
    they are complete: no lower sequence was appended. If it is even, older runs were dropped, and lower sequences
    are unknown. Empty: only the last sequence is known.
    """

    @property
    def lately(self) -> tuple[PastAppend, ...]:
        """The appends whose offsets are known, the latest first."""
        last = PastAppend(self.sequence, self.base_offset, self.next_offset, self.digest, self.partition_count)
        return last, *self.earlier

    def has_appended(self, sequence: int) -> bool | None:
        """Whether a sequence was appended; None if that is no longer known."""
        if sequence >= self.sequence:
            return sequence == self.sequence
        start = self.sequence + 1
        for index, length in enumerate(self.runs):
            start -= length
            if sequence >= start:
                return index % 2 == 0
        return False if len(self.runs) % 2 else None


ProducerState = Mapping[str, ProducerEntry]


class ProducerAppend(msgspec.Struct, frozen=True):
    """The producer of an append, for the idempotence check: its name, its epoch, the sequence of this append.

    Raises: InvalidCallError if the producer is not text, or the epoch or sequence is not a 64-bit integer.
    """

    producer_id: str
    epoch: int
    sequence: int
    transactional: bool = False
    """Whether the records are part of the transaction of this epoch."""
    control: int | None = None
    """The type of a marker (``records.ABORT``, ``records.COMMIT``), which ends transactions of earlier epochs."""
    partition_count: int | None = None
    """See ``ProducerEntry``; for a retry of the append when the topic has grown."""
    on_changed_replay: OnChangedReplay | None = None
    """The policy for a repeated sequence of a named producer. None: the engine numbers the sequences itself. It
    repeats a sequence soon and with the same records, or never.
    """
    late: bool = False
    """Whether other partitions have later sequences. If so, a partition that lacks this sequence must refuse it.
    """
    base_offset: int | None = None
    """The source offset of the first record, for a mirror. The append gets exactly this offset or fails, and keeps
    the timestamps and gaps (``records.GAP``) of the source. None: the log end, whatever it is.
    """

    def __post_init__(self) -> None:
        try:
            self.producer_id.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise InvalidCallError(f"producer {self.producer_id!r}: its name is not valid Unicode") from error
        for name in ("epoch", "sequence"):
            what = f"producer {self.producer_id!r}: {name}"
            force_setattr(self, name, whole(getattr(self, name), what))


UNNAMED_EXPIRATION_MS = 24 * 60 * 60 * 1000
"""The state of producers that the engine has named expires after a day (Kafka's producer.id.expiration.ms), or
earlier if the topic says so. Each process, even a short-lived one, leaves such a producer behind. Only the caller
of an append with an unknown outcome knows the producer's name, and will retry soon.
"""

_UNNAMED = "unnamed-"


def unnamed(new_id: NewId) -> str:
    """An id for appends that name no producer."""
    return _UNNAMED + new_id()


def is_unnamed(producer_id: str) -> bool:
    """Whether the engine has generated the producer id."""
    return producer_id.startswith(_UNNAMED) and is_id(producer_id.removeprefix(_UNNAMED))


MARKER_SEQUENCE = -1
"""The sequence of a marker; the next transaction counts from 0 again."""


def marker(producer_id: str, raised_epoch: int, *, commit: bool) -> ProducerAppend:
    """The end of a producer's transaction in a partition, as decided by the coordinator."""
    control = COMMIT if commit else ABORT
    return ProducerAppend(producer_id, raised_epoch, MARKER_SEQUENCE, transactional=True, control=control)


class EarlierAttempt(msgspec.Struct, frozen=True):
    """An earlier attempt of an append, which is or was in the log."""

    next_offset: int
    """The end of the attempt's records; an upper bound if ``base_offset`` is None."""
    base_offset: int | None = None
    """The first offset; None if the attempt was so long ago that its offsets are no longer known."""
    digest: bytes | None = None
    """The digest of its records; None if unknown."""


def earlier_attempt(state: ProducerState, append: ProducerAppend, what: str) -> EarlierAttempt | None:
    """The outcome of an earlier attempt of the same append; None for a new append. A marker has already been
    written if the producer has the marker's epoch, or a later epoch.

    Raises: InvalidProducerEpochError if a newer instance has appended. If later sequences of the producer are in
        the log: OutOfOrderSequenceNumberError if this sequence was never appended, DuplicateSequenceNumberError if
        that is unknown.
    """
    last = state.get(append.producer_id)
    if append.control is not None and last is not None and append.epoch <= last.epoch:
        return EarlierAttempt(last.next_offset, last.base_offset)
    if last is not None and append.epoch < last.epoch:
        raise InvalidProducerEpochError(
            f"{what}: producer {append.producer_id!r} has epoch {last.epoch}, but this append has "
            f"{append.epoch}: a newer instance of the producer has taken over; stop this instance"
        )
    if last is None or append.epoch > last.epoch or append.sequence > last.sequence:
        if append.late:
            raise OutOfOrderSequenceNumberError(
                f"{what}: sequence {append.sequence} of producer {append.producer_id!r} is too "
                "old to append: other partitions already have later sequences, and this "
                "partition never had records of this sequence"
            )
        return None
    for past in last.lately:
        if past.sequence == append.sequence:
            return EarlierAttempt(past.next_offset, past.base_offset, past.digest)
    appended = last.has_appended(append.sequence)
    if appended:
        return EarlierAttempt(last.lately[-1].base_offset)
    if appended is None:
        raise DuplicateSequenceNumberError(
            f"{what}: producer {append.producer_id!r} has already appended sequence {last.sequence}, and it is "
            f"unknown whether it appended sequence {append.sequence}, which is too old: search the log for the "
            "records"
        )
    raise OutOfOrderSequenceNumberError(
        f"{what}: sequence {append.sequence} of producer {append.producer_id!r} was never appended here, and "
        f"sequence {last.sequence} already was, so it is too late to append it: give new records a new sequence"
    )


def check_same_records(
    earlier: EarlierAttempt, append: ProducerAppend, records: int, digest: bytes, what: str
) -> None:
    """Compare the records of an append, by number and digest, with those of its earlier attempt, as far as these
    are known.

    Raises: ChangedReplayError for different records; DuplicateSequenceNumberError if the earlier records are no
        longer known.
    """
    sequence = f"{what}: sequence {append.sequence} of producer {append.producer_id!r}"
    if earlier.base_offset is None:
        raise DuplicateSequenceNumberError(
            f"{sequence} was appended too long ago to compare its records with these. These records were not "
            "stored. If they are the same, there is nothing to do; otherwise give them a new sequence. "
            "on_changed_replay='accept' treats such records as the same"
        )
    known = earlier.next_offset - earlier.base_offset
    if records == known and digest == (earlier.digest or digest):
        return
    raise ChangedReplayError(
        f"{sequence} was appended before with other records ({known} records at offsets [{earlier.base_offset}, "
        f"{earlier.next_offset}), now {records}{'' if records != known else ' different ones'}); the new records "
        "were not stored: give new records a new sequence"
    )


def after_append(
    state: ProducerState,
    append: ProducerAppend,
    base_offset: int,
    next_offset: int,
    now_ms: int,
    digest: bytes | None = None,
) -> dict[str, ProducerEntry]:
    """The state after ``append`` has received the offsets ``[base_offset, next_offset)``, for records with this
    ``digest``.
    """
    last = state.get(append.producer_id)
    txn_first_offset = None if last is None or append.control is not None else last.txn_first_offset
    if txn_first_offset is None and append.transactional and append.control is None:
        txn_first_offset = base_offset
    entry = ProducerEntry(
        append.epoch, append.sequence, base_offset, next_offset, now_ms, txn_first_offset, append.partition_count
    )
    if append.on_changed_replay is not None:
        before = last if last is not None and last.epoch == append.epoch else None
        entry = replace(
            entry,
            digest=digest,
            earlier=() if before is None else before.lately[: LAST_APPENDS - 1],
            runs=(1,) if before is None else _longer(before, append.sequence),
        )
    return {**state, append.producer_id: entry}


def _longer(before: ProducerEntry, sequence: int) -> tuple[int, ...]:
    """The runs with one more sequence, which is greater than all earlier sequences."""
    runs = before.runs or (1, 0)  # an old entry has only its last append
    missing = sequence - before.sequence - 1
    return ((1, missing, *runs) if missing else (runs[0] + 1, *runs[1:]))[:MOST_RUNS]


def without_transactions(state: ProducerState) -> dict[str, ProducerEntry]:
    """The state, without open transactions, at an offset below which all transactions are decided. An entry below
    the last stable offset may still list an open transaction whose marker comes later. A log that continues from
    there without the later files, such as a restored log, would never get that marker.
    """
    return {name: replace(entry, txn_first_offset=None) for name, entry in state.items()}


def unexpired(state: ProducerState, now_ms: int, expiration_ms: int) -> dict[str, ProducerEntry]:
    """The state without expired producers. A producer expires if it has no open transaction and has not appended
    for ``expiration_ms`` (producer.id.expiration.ms), or ``UNNAMED_EXPIRATION_MS``.
    """
    unnamed_ms = min(expiration_ms, UNNAMED_EXPIRATION_MS)
    return {
        name: entry
        for name, entry in state.items()
        if now_ms - entry.appended_ms < (unnamed_ms if is_unnamed(name) else expiration_ms)
        or entry.txn_first_offset is not None
    }


def plain(state: Mapping[str, ProducerEntry | None]) -> dict[str, tuple[object, ...] | None]:
    """The state as JSON values: sorted by name, so equal states give equal bytes; trailing default fields are left
    out.
    """
    return {
        name: None if entry is None else _without_nothing_at_the_end(astuple(entry))
        for name, entry in sorted(state.items())
    }


def _without_nothing_at_the_end(fields: tuple[object, ...]) -> tuple[object, ...]:
    while fields[-1] is None or fields[-1] == ():
        fields = fields[:-1]
    return tuple(
        tuple(_without_nothing_at_the_end(astuple(past)) for past in field)
        if isinstance(field, tuple) and field and isinstance(field[0], PastAppend)
        else field
        for field in fields
    )


def encode(state: ProducerState) -> bytes:
    """The content of a ``.local`` file: JSON as in footers, with its checksum."""
    return sealed(msgspec.json.encode(plain(state)))


def decode(data: bytes) -> dict[str, ProducerEntry]:
    """Parse the content of a ``.local`` file. Raises: ValueError (the caller knows which file to name)."""
    return parse_json(unsealed(data), dict[str, ProducerEntry])

"""Producer state: what makes a retried, speculative or re-run append append once (KIP-98's idempotence).

Cumulative, in the footer of every data file: per producer its epoch, the last sequence and the offsets
that this sequence got. One sequence is one append to the partition; gaps are allowed, since a
micro-batch may have nothing for a partition. Pure.

Of a transactional producer it also says where its open transaction begins. Each transaction has a producer epoch
of its own (KIP-890): who decides how it ends raises the epoch by one, and the marker carries the raised epoch.
From then on a late append of the ended transaction has an epoch that is over, and a late marker finds a later one.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import astuple, force_setattr, replace

from partitions.errors import DuplicateSequenceNumberError, InvalidCallError, InvalidProducerEpochError
from partitions.identity import NewId, is_id
from partitions.numbers import whole
from partitions.records import ABORT, COMMIT
from partitions.register import sealed, unsealed


class ProducerEntry(msgspec.Struct, frozen=True, array_like=True):
    """The last append of one producer: epoch, sequence, offsets ``[base, next)``, when (wall clock)."""

    epoch: int
    sequence: int
    base_offset: int
    next_offset: int
    appended_ms: int
    txn_first_offset: int | None = None
    """Where its open transaction begins in this partition (Kafka's currentTxnFirstOffset); None without one."""
    dealt_among: int | None = None
    """Among how many partitions the sequence was dealt out by the records' keys; None where they were given."""


ProducerState = Mapping[str, ProducerEntry]


class ProducerAppend(msgspec.Struct, frozen=True):
    """Who appends, for the idempotence check: producer, its epoch, the sequence of this append.

    Raises: InvalidCallError for a producer that is no text, an epoch or a sequence that is no whole number of 64
        bits.
    """

    producer_id: str
    epoch: int
    sequence: int
    transactional: bool = False
    """The records are part of the transaction of this epoch."""
    control: int | None = None
    """Of a marker (``records.ABORT``, ``records.COMMIT``): it ends the transactions of earlier epochs."""
    dealt_among: int | None = None
    """As in ``ProducerEntry``: for who tries the append again when the topic has grown."""

    def __post_init__(self) -> None:
        try:
            self.producer_id.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise InvalidCallError(f"producer {self.producer_id!r}: its name is no valid Unicode text") from error
        for name in ("epoch", "sequence"):
            what = f"producer {self.producer_id!r}: {name}"
            force_setattr(self, name, whole(getattr(self, name), what))


UNNAMED_EXPIRATION_MS = 24 * 60 * 60 * 1000
"""Producers that the engine has named itself are forgotten after a day (Kafka's producer.id.expiration.ms), or
sooner where the topic says so. Each process leaves one behind, also a short one; and nobody knows it but who was
told of an append with an unknown outcome, and is about to try it again."""

_UNNAMED = "unnamed-"


def unnamed(new_id: NewId) -> str:
    """An id for the appends of those who name no producer."""
    return _UNNAMED + new_id()


def is_unnamed(producer_id: str) -> bool:
    """Whether the engine has made it up."""
    return producer_id.startswith(_UNNAMED) and is_id(producer_id.removeprefix(_UNNAMED))


MARKER_SEQUENCE = -1
"""Of a marker; the next transaction counts from 0 again."""


def marker(producer_id: str, raised_epoch: int, *, commit: bool) -> ProducerAppend:
    """The end of a producer's transaction in a partition, as the coordinator has decided it."""
    control = COMMIT if commit else ABORT
    return ProducerAppend(producer_id, raised_epoch, MARKER_SEQUENCE, transactional=True, control=control)


def earlier_attempt(state: ProducerState, append: ProducerAppend, what: str) -> ProducerEntry | None:
    """The entry of an earlier attempt of this very append, or None when it is new. A marker is there already when
    the producer has its epoch, or a later one.

    Raises: InvalidProducerEpochError when a newer incarnation has appended;
        DuplicateSequenceNumberError when later sequences of the producer are in the log.
    """
    last = state.get(append.producer_id)
    if last is None or append.epoch > last.epoch:
        return None
    if append.control is not None:
        return last
    if append.epoch < last.epoch:
        raise InvalidProducerEpochError(
            f"{what}: producer {append.producer_id!r} has epoch {last.epoch} by now, this append has "
            f"{append.epoch}: a newer incarnation has taken over, stop this one"
        )
    if append.sequence == last.sequence:
        return last
    if append.sequence < last.sequence:
        raise DuplicateSequenceNumberError(
            f"{what}: producer {append.producer_id!r} has appended sequence {last.sequence} already, "
            f"{append.sequence} comes too late: it was appended before, or must get a new sequence"
        )
    return None


def after_append(
    state: ProducerState, append: ProducerAppend, base_offset: int, next_offset: int, now_ms: int
) -> dict[str, ProducerEntry]:
    """The state after ``append`` got the offsets ``[base_offset, next_offset)``."""
    last = state.get(append.producer_id)
    txn_first_offset = None if last is None or append.control is not None else last.txn_first_offset
    if txn_first_offset is None and append.transactional and append.control is None:
        txn_first_offset = base_offset
    entry = ProducerEntry(
        append.epoch, append.sequence, base_offset, next_offset, now_ms, txn_first_offset, append.dealt_among
    )
    return {**state, append.producer_id: entry}


def settled(state: ProducerState) -> dict[str, ProducerEntry]:
    """The state at an offset where all transactions that began below it are decided: none is open. An entry below
    the last stable offset may still call one open whose marker stands behind it; a log that goes on from there
    without what is behind it (a restored one, say) would wait for that marker for ever.
    """
    return {name: replace(entry, txn_first_offset=None) for name, entry in state.items()}


def unexpired(state: ProducerState, now_ms: int, expiration_ms: int) -> dict[str, ProducerEntry]:
    """Without the producers that have not appended for ``expiration_ms`` (producer.id.expiration.ms), or
    ``UNNAMED_EXPIRATION_MS``, and have no open transaction."""
    unnamed_ms = min(expiration_ms, UNNAMED_EXPIRATION_MS)
    return {
        name: entry
        for name, entry in state.items()
        if now_ms - entry.appended_ms < (unnamed_ms if is_unnamed(name) else expiration_ms)
        or entry.txn_first_offset is not None
    }


def plain(state: ProducerState) -> dict[str, tuple[int | None, ...]]:
    """As it is written: the last fields are left out where they say nothing, for whoever does not know them."""
    return {name: _without_nothing_at_the_end(astuple(entry)) for name, entry in state.items()}


def _without_nothing_at_the_end(fields: tuple[int | None, ...]) -> tuple[int | None, ...]:
    while fields[-1] is None:
        fields = fields[:-1]
    return fields


def encode(state: ProducerState) -> bytes:
    """The content of a ``.local`` file: JSON as in footers, with its checksum."""
    return sealed(msgspec.json.encode(plain(state)))


def decode(data: bytes) -> dict[str, ProducerEntry]:
    """Raises: ValueError (the caller knows which file to name)."""
    return msgspec.json.decode(unsealed(data), type=dict[str, ProducerEntry])

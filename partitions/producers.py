"""Producer state: what makes a retried, speculative or re-run append append once (KIP-98's idempotence).

Cumulative, in the footer of every data file: per producer its epoch, the last sequence and the offsets
that this sequence got. One sequence is one append to the partition; gaps are allowed, since a
micro-batch may have nothing for a partition. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from partitions.errors import DuplicateSequenceNumberError, InvalidProducerEpochError


class ProducerEntry(msgspec.Struct, frozen=True, array_like=True):
    """The last append of one producer: epoch, sequence, offsets ``[base, next)``, when (wall clock)."""

    epoch: int
    sequence: int
    base_offset: int
    next_offset: int
    appended_ms: int


ProducerState = Mapping[str, ProducerEntry]


class ProducerAppend(msgspec.Struct, frozen=True):
    """Who appends, for the idempotence check: producer, its epoch, the sequence of this append."""

    producer_id: str
    epoch: int
    sequence: int


def earlier_attempt(state: ProducerState, append: ProducerAppend, what: str) -> ProducerEntry | None:
    """The entry of an earlier attempt of this very append, or None when it is new.

    Raises: InvalidProducerEpochError when a newer incarnation has appended;
        DuplicateSequenceNumberError when later sequences of the producer are in the log.
    """
    last = state.get(append.producer_id)
    if last is None or append.epoch > last.epoch:
        return None
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
    entry = ProducerEntry(append.epoch, append.sequence, base_offset, next_offset, now_ms)
    return {**state, append.producer_id: entry}


def unexpired(state: ProducerState, now_ms: int, expiration_ms: int) -> dict[str, ProducerEntry]:
    """Without the producers that have not appended for ``expiration_ms`` (producer.id.expiration.ms)."""
    return {name: entry for name, entry in state.items() if now_ms - entry.appended_ms < expiration_ms}


def encode(state: ProducerState) -> bytes:
    """JSON, as in footers and ``.local`` files."""
    return msgspec.json.encode(dict(state))


def decode(data: bytes) -> dict[str, ProducerEntry]:
    """Raises: ValueError (the caller knows which file to name)."""
    return msgspec.json.decode(data, type=dict[str, ProducerEntry])

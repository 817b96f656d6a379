"""Makes the report of an append: the outcome of each partition, and notes about other attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratalog.engine.driver.report import Failure, Report, Value
from stratalog.engine.driver.run import Measure
from stratalog.engine.records.acknowledge import PendingAppend
from stratalog.engine.replication.append import Appended
from stratalog.partitions.errors import DuplicateSequenceNumberError, OutOfOrderSequenceNumberError
from stratalog.partitions.producers import ProducerAppend, is_unnamed


def answer(
    topic: str,
    who: ProducerAppend,
    states: Mapping[int, PendingAppend],
    measure: Measure,
    notes: Sequence[str],
    *,
    named: bool,
) -> Report:
    """Make the report of an append that has ended in all partitions. ``named``: the caller has named the producer,
    so an earlier call may have appended the sequence.
    """
    rows = [_row(topic, partition, state, named) for partition, state in sorted(states.items())]
    done = [s.appended for s in states.values() if s.appended is not None and s.error is None]
    return Report(
        operation="append",
        rows=rows,
        failures=[
            Failure.of(f"{topic}-{partition}", state.error)
            for partition, state in sorted(states.items())
            if state.error is not None
        ],
        totals={
            "records": sum(_records(appended) or 0 for appended in done),
            "bytes": sum(appended.bytes for appended in done),
        },
        seconds=measure.seconds,
        counts=measure.counts,
        notes=[*notes, *_notes_on_attempts(who, rows, states)],
        remedy=_remedy(who, rows, states, named),
    )


def _remedy(
    who: ProducerAppend, rows: Sequence[Mapping[str, Value]], states: Mapping[int, PendingAppend], named: bool
) -> str:
    """Advice about the failed partitions. A caller that follows it appends nothing twice."""
    outcomes = {row["outcome"] for row in rows}
    refused = OutOfOrderSequenceNumberError | DuplicateSequenceNumberError
    if any(isinstance(state.error, refused) for state in states.values()):
        return "acknowledged records are kept"
    if named or "unknown" in outcomes:
        return f"fix the cause, and {repetition(who)}: nothing is appended twice"
    if "acknowledged" in outcomes:
        return "fix the cause, and append only the rows of these partitions again"
    return "nothing was appended: fix the cause, and append again"


def repetition(who: ProducerAppend) -> str:
    """Advice to the caller of a failed append: how to repeat it without appending a record twice."""
    if who.transactional:
        return "abort the transaction, and begin a new one"
    return f"run the append again with producer {who.producer_id!r}, sequence {who.sequence}"


def _notes_on_attempts(
    who: ProducerAppend, rows: Sequence[Mapping[str, Value]], states: Mapping[int, PendingAppend]
) -> list[str]:
    """Notes about other attempts of the same append, from its outcomes."""
    again = f"producer {who.producer_id!r}, sequence {who.sequence}"
    notes = []
    outcomes = {row["outcome"] for row in rows}
    forgotten = any(isinstance(state.error, DuplicateSequenceNumberError) for state in states.values())
    if "unknown" in outcomes and not forgotten:
        until = ", within a day" if is_unnamed(who.producer_id) else ""
        notes.append(f"unknown partitions: {repetition(who)}{until}")
    if who.on_changed_replay is None:
        return notes
    if any(
        state.error is not None and not state.tried and not isinstance(state.error, OutOfOrderSequenceNumberError)
        for state in states.values()
    ):
        notes.append(
            "'not appended' refers to this attempt: the next attempt will show whether an earlier attempt with "
            f"{again} succeeded"
        )
    if "not tried" in outcomes:
        notes.append(
            "partitions that were not tried received no records, because the append was refused for another "
            "partition"
        )
    if "duplicate" in outcomes:
        old = any(row["outcome"] == "duplicate" and row["base_offset"] is None for row in rows)
        compared = ", too long ago to compare its records" if old else ""
        notes.append(f"{again} was appended before{compared}: partitions that have it were left unchanged")
    return notes


def _row(topic: str, partition: int, state: PendingAppend, named: bool) -> dict[str, Value]:
    appended = state.appended
    if state.error is None and appended is None:
        outcome = "not tried"
    elif state.error is not None or appended is None:
        outcome = "unknown" if state.tried else "not appended"
    else:
        outcome = "acknowledged" if state.ours or not named else "duplicate"
    if appended is None:
        return append_row(topic, partition, 0, outcome)
    next_offset = None if appended.base_offset is None else appended.next_offset
    return append_row(topic, partition, _records(appended), outcome, appended.base_offset, next_offset)


def append_row(
    topic: str,
    partition: int | None,
    records: int | None,
    outcome: str,
    base_offset: int | None = None,
    next_offset: int | None = None,
    **more: Value,
) -> dict[str, Value]:
    """A row of the report of an append, with the columns of every such row in their order, then ``more``."""
    return {
        "topic": topic,
        "partition": partition,
        "base_offset": base_offset,
        "next_offset": next_offset,
        "records": records,
        "outcome": outcome,
        **more,
    }


def _records(appended: Appended) -> int | None:
    """The number of records; None if the number is no longer known."""
    return None if appended.base_offset is None else appended.next_offset - appended.base_offset

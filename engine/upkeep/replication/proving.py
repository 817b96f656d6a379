"""Proves how far a log is committed, and records this offset in the metadata."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.partition_commands import MarkWritten, WrittenUpTo
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.in_sync import Progressed, is_current
from stratalog.engine.replication.watermark import advance_high_watermark
from stratalog.partitions.runner import Done, Failed


def prove(metadata: MetadataClient, storage: Storage, states: Sequence[Progressed]) -> None:
    """Advance the high watermark to the offset up to which every member of the maximal ISR was seen to have the
    log. Before that, a linearizable read must show that the partition is unchanged.
    """
    candidates = [state for state in states if proven(state) > state.high_watermark]
    if not candidates:
        return
    image = metadata.image()
    unchanged = [state for state in candidates if is_current(image, state.replicas.view)]

    def write(state: Progressed) -> int:
        advance_high_watermark(state.replicas, proven(state), storage.copies)
        return proven(state)

    for outcome in storage.threads.run(write, unchanged):
        match outcome:
            case Done(state, offset):
                state.high_watermark = offset
            case Failed(state, error):
                state.fail(state.replicas, error)


def proven(state: Progressed) -> int:
    """The offset up to which every member of the maximal ISR was seen to have the log. 0 if a member was not
    listed, or if the ISR has too few members to commit records.
    """
    if state.log_end == 0 or not state.has_min_isr:
        return 0
    ends = [state.log_end]
    for broker in state.replicas.acknowledging:
        if broker not in state.caught_up:
            return 0
        ends.append(state.caught_up[broker].log_end)
    return min(ends)


def mark_written(metadata: MetadataClient, states: Iterable[Progressed]) -> None:
    """Record in the metadata the offsets up to which partitions have committed records. One commit covers all
    partitions that have at least twice as many offsets as recorded.
    """
    written = tuple(
        WrittenUpTo(*view.key, state.high_watermark, view.leader_epoch)
        for state in states
        for view in [state.replicas.view]
        if state.high_watermark > view.log_start_offset and state.high_watermark >= 2 * view.written_to
    )
    if written:
        metadata.submit(MarkWritten(written))

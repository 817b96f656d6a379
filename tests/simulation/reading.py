"""Readers: their records are contiguous, below the high watermark, and committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.engine.driver.opening import Ports
from stratalog.engine.reading.list_offsets import list_offsets
from stratalog.engine.reading.look import look
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.store import Store
from tests.simulation.both_tiers import check_latest
from tests.simulation.content import TOKEN_COLUMNS, tokens_of
from tests.simulation.oracle import History
from tests.simulation.scheduler import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World


def read_topic(world: World, ports: Ports) -> str:
    """Read every record, like ``plan_read`` and a scan."""
    from tests.simulation.world import TOPIC

    before = {key: dict(history.read) for key, history in world.oracle.histories.items()}
    _, states = look(ports.metadata, ports.storage, ports.memory, TOPIC)
    count = 0
    for state in states:
        key = state.leader.view.topic_id, state.leader.view.partition
        history = world.oracle.history(key)
        assert state.leader.view.leader is not None
        folder = f"{state.leader.view.leader}/{state.leader.replicas.replica(state.leader.view.leader).folder}"
        _note_watermark(history, folder, state.leader.log.high_watermark, before.get(key, {}))
        position = state.readable.log_start
        seen: dict[int, bytes] = {}
        for piece in state.readable.pieces:
            if piece.start != position:
                raise Violation(f"I5: a reader gets {piece.start} after {position} of {folder}")
            who = f"for a reader of {folder}"
            tokens = _read(history, piece.store, piece.file, piece.start, piece.end, who, leader=True)
            seen |= dict(enumerate(tokens, piece.start))
            count += len(tokens)
            position = piece.end
        if position != max(state.positions.high_watermark, state.readable.log_start):
            raise Violation(f"I5: a reader gets up to {position} of {state.positions.high_watermark} of {folder}")
        if world.compacted and len(seen) == position - state.readable.log_start:
            check_latest(history, seen, state.readable.log_start, position, f"a reader of {folder}")
    return f"{count} records"


def read_replica(world: World, ports: Ports, broker: int, partition: int) -> str:
    """Read one replica, any of them, below its high watermark."""
    view = ports.metadata.image().view(world.topic_id, partition)
    if broker not in view.replicas:
        return "no replica"
    key = view.topic_id, partition
    history = world.oracle.history(key)
    replica = ports.storage.replicas(view).replica(broker)
    folder = f"{broker}/{replica.folder}"
    before = dict(history.read)
    log = replica.log()
    if key not in world.damage.partitions or broker in view.isr:  # a heal takes files out of the others
        _note_watermark(history, folder, log.high_watermark, before)
    count = 0
    for link in log.chain:
        end = min(link.end, log.high_watermark)
        if link.start < end:
            count += len(_read(history, replica.store, link.file, link.start, end, f"for a reader of {folder}"))
    return f"{count} records"


def offsets(world: World, ports: Ports) -> str:
    """Check that positions are answered, and that their order is right."""
    from tests.simulation.world import TOPIC

    specs = (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL, OffsetSpec.LATEST)
    return "; ".join(str(list_offsets(ports.metadata, ports.storage, ports.memory, TOPIC, spec)) for spec in specs)


def _note_watermark(history: History, folder: str, high_watermark: int, before: dict[str, int]) -> None:
    if not history.unclean and high_watermark < before.get(folder, 0):
        raise Violation(f"I4: a reader of {folder} got {high_watermark}, {before[folder]} was read before")
    history.read[folder] = max(history.read.get(folder, 0), high_watermark)


def _read(
    history: History, store: Store, file: DataFile, start: int, end: int, who: str, *, leader: bool = False
) -> list[bytes]:
    try:
        read = [pa.Table.from_batches([rows]) for rows in read_batches(store, file, start, end, TOKEN_COLUMNS)]
        tokens = [token for rows in read for token in tokens_of(rows)]
    except StratalogError:
        return []  # it is deleted: plan again
    if len(tokens) != end - start:
        raise Violation(f"I5: {len(tokens)} records of [{start}, {end}) {who}")
    if not history.unclean:
        for offset, token in enumerate(tokens, start):
            history.commit(offset, token, who)
            if leader and offset in history.reported and token != b"%d:" % offset:
                raise Violation(f"E1: {token!r} at {offset} was reported as erased, and is read {who}")
    return tokens

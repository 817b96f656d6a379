"""Reads ``__remote_log_metadata`` from the files of its log, of a cluster that is running or gone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stratalog.bridges.kafka_tier.batches import KafkaBatch, batches_of, decompressed
from stratalog.bridges.kafka_tier.columns import decode
from stratalog.bridges.kafka_tier.segment import MOST_SEGMENT_BYTES
from stratalog.bridges.kafka_tier.segment_states import Message, parsed
from stratalog.partitions.errors import CorruptionError, InvalidCallError, LogGapError, SourceChangedError
from stratalog.partitions.store import Store

TOPIC = "__remote_log_metadata"
_NAME = re.compile(rf"(?:.*/)?{TOPIC}-(\d{{1,10}})/(\d{{20}})\.log\Z")
_READ_BYTES = 8 * 1024 * 1024
_GROUP = 1024


def messages_of(store: Store, notes: list[str]) -> Iterator[Message]:
    """All messages in the folders ``__remote_log_metadata-N`` of a store. Gaps are added to ``notes``. Raises:
    InvalidCallError if there are no such folders; LogGapError for a gap between files; CorruptionError.
    """
    logs: dict[int, list[tuple[int, str]]] = {}
    for name in sorted(store.names("")):
        if found := _NAME.match(name):
            logs.setdefault(int(found[1]), []).append((int(found[2]), name))
    if not logs:
        raise InvalidCallError(
            f"{store.uri} has no files of {TOPIC}: give the folder that contains {TOPIC}-0 and the other "
            "partitions, or the address of a broker"
        )
    missing = sorted(set(range(max(logs) + 1)) - set(logs))
    if missing:
        notes.append(f"{TOPIC} has no files of its partitions {missing}: segments described there are unknown")
    for partition, files in sorted(logs.items()):
        yield from _partition(store, partition, sorted(files), notes)


def _partition(store: Store, partition: int, files: list[tuple[int, str]], notes: list[str]) -> Iterator[Message]:
    if files[0][0] > 0:
        notes.append(
            f"{TOPIC}-{partition} begins at offset {files[0][0]}: segments that only earlier records describe are "
            "unknown"
        )
    next_offset = files[0][0]
    for number, (base, name) in enumerate(files):
        what = f"{TOPIC}-{partition} ({name})"
        if base != next_offset:
            raise LogGapError(f"{what} begins at offset {base}, but the previous file ends at {next_offset}")
        for group in _groups(store, name, what, number == len(files) - 1, notes):
            for batch in group:
                if batch.base_offset < next_offset:
                    raise CorruptionError(f"{what}: offset {batch.base_offset} comes after {next_offset - 1}")
                next_offset = batch.last_offset + 1
            plain = [decompressed(batch, what) for batch in group if not batch.control]
            if not plain:
                continue
            rows = decode(plain, 0, next_offset, what)
            values = zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True)
            yield from parsed(list(values), what)


def _groups(store: Store, name: str, what: str, last: bool, notes: list[str]) -> Iterator[list[KafkaBatch]]:
    """The batches of a file, many at a time. The last file of a log may end in the middle of a batch if its broker
    was killed.
    """
    position, rest = 0, b""
    try:
        while data := store.read(name, position + len(rest), position + len(rest) + _READ_BYTES):
            data = rest + data
            group = batches_of(data, position, what)
            for at in range(0, len(group), _GROUP):
                yield group[at : at + _GROUP]
            if group:
                data, position = data[group[-1].end :], position + group[-1].end
            rest = data
            if position > MOST_SEGMENT_BYTES:
                raise CorruptionError(f"{what} is larger than a segment of Kafka can be")
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} was deleted while it was read: read again") from error
    if rest:
        if not last:
            raise CorruptionError(f"{what} ends in the middle of a batch")
        notes.append(
            f"{what} ends in the middle of a batch at byte {position}: the content of that batch is unknown"
        )

"""Variants of the listing of a replica and of its log, each without a step of the protocol (``mutations``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import stratalog.engine.metadata.fold
import stratalog.engine.records.acknowledge
import stratalog.engine.replication.append
import stratalog.engine.replication.append_file
import stratalog.engine.replication.sync
import stratalog.engine.state.transaction_steps
import stratalog.engine.upkeep.replication.replicate
import stratalog.engine.upkeep.retention.retain
import stratalog.partitions.known_log
import stratalog.partitions.lineage
import stratalog.partitions.listing
import stratalog.partitions.replica
import stratalog.partitions.retention
import stratalog.partitions.transactions
from stratalog.partitions.known_log import KnownLog, known_again
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Link, Listing, ReplicaLog
from stratalog.partitions.paths import DataName
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.store.two_scans import objects_together
from tests.simulation.variants import RESOLVERS, _resolve, all_of, patched


def end_of_known_epoch(lineage: Lineage, epoch: int) -> int | None:
    """Without "whether or not e is in it"."""
    if all(entry.epoch != epoch for entry in lineage.entries):
        return 0
    return next((entry.start_offset for entry in lineage.entries if entry.epoch > epoch), None)


def is_live(name: DataName, lineage: Lineage, local_start: int) -> bool:
    """Without "a merged segment is live only if it ends above the local start"."""
    if name.next_offset is None:
        return name.base_offset >= local_start and lineage.epoch_at(name.base_offset) == name.epoch
    return lineage.epoch_at(name.next_offset - 1) == name.epoch


def resolve_without_chain(
    listing: Listing, lineage: Lineage, end_of_append: Callable[[DataFile], int]
) -> ReplicaLog:
    """Live files in the order of their bases, none of them cut; a gap is not detected if a base follows."""
    log = _resolve(listing, lineage, end_of_append)
    dead = {file.name for file in log.dead}
    live = sorted((file for file in listing.data if file.name not in dead), key=lambda file: file.name)
    merged = [file.name for file in live if file.name.merged]

    def hidden(name: DataName) -> bool:
        return any(
            other != name
            and other.base_offset <= name.base_offset
            and (name.next_offset or name.base_offset + 1) <= (other.next_offset or 0)
            for other in merged
        )

    shown = [file for file in live if not hidden(file.name)]
    chain: list[Link] = []
    for index, file in enumerate(shown):
        following = shown[index + 1].name.base_offset if index + 1 < len(shown) else None
        end = file.name.next_offset or (following if following is not None else end_of_append(file))
        chain.append(Link(file.name.base_offset, end, file))
    end = max([log.local_start, *(link.end for link in chain)])
    return replace(
        log,
        chain=tuple(chain),
        log_end=end,
        high_watermark=min(end, max(log.high_watermark, log.claimed_high_watermark)),
        stranded=(),
        hidden=tuple(file for file in live if hidden(file.name)),
    )


def without_chain() -> AbstractContextManager[object]:
    import tests.simulation.invariants

    modules = (*RESOLVERS, tests.simulation.invariants)
    return all_of(
        patched(stratalog.partitions.replica, "log_again", lambda _, *looked: resolve_without_chain(*looked)),
        *(patched(module, "resolve", resolve_without_chain) for module in modules),
    )()


def chain_of_any_generation(
    live: Iterable[DataFile], position: int, end_of_append: Callable[[DataFile], int]
) -> list[Link]:
    """At each offset the file that reaches furthest, as without rules."""
    return stratalog.partitions.listing._chain_of_one_generation([*live], position, None, end_of_append)


def first_scan(list_once: Callable[[], Any], where: str, together: object) -> Any:
    """One scan, without a second one."""
    return list_once()


def all_of_the_second(
    first: Sequence[StoredObject], second: Sequence[StoredObject]
) -> Sequence[StoredObject] | None:
    """Includes names that appeared after the end of the first scan."""
    return None if objects_together(first, second) is None else second


def holes_and_all(first: Sequence[StoredObject], second: Sequence[StoredObject]) -> Sequence[StoredObject] | None:
    """Without the names that only the second scan shows."""
    return None if objects_together(first, second) is None else first


def never_late(first: Sequence[StoredObject], second: Sequence[StoredObject]) -> Sequence[StoredObject] | None:
    """High watermarks as if the whole log below them were listed."""
    found = objects_together(first, second)
    return None if found is None else [replace(one, late=False) for one in found]


def folder_without_incarnation(
    incarnation_folder: str, topic: str, topic_id: str, partition: int, assignment: int
) -> str:
    """A replica's path without its directory id."""
    return f"d/{topic}-{topic_id}/{partition}.{assignment}"


def known_for_good(
    before: KnownLog | None,
    answer: Sequence[StoredObject],
    folder: str,
    uri_of: Callable[[str], str],
    generation: int = 0,
) -> KnownLog:
    """A cached folder is not listed again."""
    return before or known_again(None, answer, folder, uri_of, generation)

"""The tier of each part of a log, by offsets and by bytes. Pure.

expired   no longer part of the log; its bytes may not be deleted yet
cold      only in the remote tier
both      in the remote tier and on the brokers
pending   only on the brokers, to be tiered
hot       only on the brokers, because the topic is not tiered
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stratalog.engine.health.partitions import known_end
from stratalog.engine.health.sight import SeenPartition
from stratalog.partitions.listing import DataFile, Listing
from stratalog.tiering.remote_segment import RemoteSegment

EXPIRED, COLD, BOTH, PENDING, HOT = TIERS = ("expired", "cold", "both", "pending", "hot")


@dataclass(frozen=True, slots=True)
class TieredLog:
    """The observed state of one log. The end is a lower bound, because names do not show the length of the last
    append.
    """

    start: int
    """The log's first offset, in either tier."""
    local_start: int | None
    """This and the next two fields are None if no copy could be listed."""
    high_watermark: int | None
    end: int | None
    remote_start: int | None
    """None: no remote segment has records of the log."""
    remote_end: int | None
    """None: nothing is tiered, as far as is known."""
    spans: tuple[tuple[str, int, int], ...]
    """Tiers with their offsets ``[start, end)``, in order of offsets; none is empty."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes by tier, without zeros; for ``both``, the bytes of the copy on the brokers."""


def tiered_log(
    seen: SeenPartition, copy: Listing | None, segments: Sequence[RemoteSegment], remote_end: int | None
) -> TieredLog:
    """The log of a partition, judged by the folder of its leader or of another ``copy`` (None: no folder is
    readable). ``segments`` are the segments of its remote log, in order; ``remote_end`` is the last known end of
    the remote log, in case that is not readable now.
    """
    start = seen.view.log_start_offset
    copied = seen.config is not None and seen.config.copies_to_remote
    live = [segment for segment in segments if segment.next_offset > start]
    remote_start = max(live[0].base_offset, start) if live else None
    remote_end = live[-1].next_offset if live else remote_end
    tiered_to = start if remote_end is None else max(start, remote_end)
    sizes = dict.fromkeys(TIERS, 0)
    sizes[EXPIRED] = sum(segment.size_bytes for segment in segments if segment.next_offset <= start)
    local_start = high_watermark = end = None
    if copy is not None:
        local_start = max(start, copy.local_start)
        high_watermark = max((mark.offset for mark in copy.watermarks), default=0)
        end = max(known_end(copy), high_watermark, local_start)
        for file, is_live in _live(copy, local_start):
            tier = (PENDING if copied else HOT) if file.name.least_end > tiered_to else BOTH
            sizes[tier if is_live else EXPIRED] += file.object.size_bytes
    begins = tiered_to if local_start is None else local_start
    sizes[COLD] = sum(segment.size_bytes for segment in live if segment.next_offset <= begins)
    spans = [
        (EXPIRED, 0, start),
        (COLD, tiered_to if remote_start is None else remote_start, min(tiered_to, begins)),
        (BOTH, begins, min(tiered_to, begins if end is None else end)),
        (PENDING if copied else HOT, max(begins, tiered_to), begins if end is None else end),
    ]
    return TieredLog(
        start,
        local_start,
        high_watermark,
        end,
        remote_start,
        remote_end,
        tuple(span for span in spans if span[1] < span[2]),
        {tier: size for tier, size in sizes.items() if size},
    )


def _live(copy: Listing, start: int) -> Iterator[tuple[DataFile, bool]]:
    """The data files. The bool says whether a file is still part of the log: neither below its start nor replaced
    by a segment.
    """
    covered = 0
    for file in sorted(copy.data, key=lambda file: (file.name.base_offset, -file.name.least_end)):
        is_live = file.name.least_end > start and file.name.base_offset >= covered
        if is_live and file.name.merged:
            covered = file.name.least_end
        yield file, is_live

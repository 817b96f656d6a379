"""Consumer groups by topic and partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratalog.bridges.page.tiers import TieredLog
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.records.groups import named
from stratalog.engine.state.consumer_offsets import GroupState
from stratalog.partitions.identity import TopicPartition

MOST_COMMITS = 100_000
"""The maximum number of committed offsets on one page."""
COMMIT_COLUMNS = ("partition", "committed", "high_watermark", "lag", "commit_ms", "metadata")


def group_rows(
    image: ClusterImage,
    groups: Mapping[str, GroupState],
    lags: Mapping[tuple[str, str], int],
    logs: Mapping[TopicPartition, TieredLog],
) -> list[dict[str, Any]]:
    """A row for each group and topic. ``lag`` is None if it is unknown; ``commits`` have ``COMMIT_COLUMNS``, and
    are None after the first ``MOST_COMMITS`` of all groups. ``member_epoch`` is None for a group for which no
    member has committed.
    """
    rows: list[dict[str, Any]] = []
    left = MOST_COMMITS
    for group, state in sorted(groups.items()):
        commits: dict[str, list[list[Any]]] = {}
        for (topic, partition), one in named(image, state):
            log = logs.get((topic, partition))
            mark = None if log is None else log.high_watermark
            # A commit beyond the log end has no lag; a finding reports it.
            lag = None if mark is None or one.offset > mark else mark - one.offset
            row = [partition, one.offset, mark, lag, one.commit_ms, one.metadata]
            commits.setdefault(topic, []).append(row)
        for topic, found in commits.items():
            fits = len(found) <= left
            left -= len(found) if fits else 0
            rows.append(
                {
                    "group": group,
                    "topic": topic,
                    "lag": lags.get((group, topic)),
                    "member_epoch": state.member_epoch,
                    "commit_ms": max(row[4] for row in found),
                    "expires_ms": state.expires_ms,
                    "commits": found if fits else None,
                }
            )
    return rows

"""Small configurations with hand-written schedules, in which an omitted step of the protocol does harm."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.configuration import (
    DAYS_APART_MS,
    EXPIRES_SOONER,
    Configuration,
    small,
)

STARTING_OVER = replace(
    small(
        "replicate",
        "replicate",
        setup="append p9 0 0 1; shrink 1 0; shrink 2 0;"
        "append p9 1 0 1; append p9 2 0 1; append p9 3 0 1; retain; retain",
        retention_bytes="2500",
    ),
    schedule="priorities",
    horizon=40,
)
REUSED_NAMES = small(
    "append p0 0 0 1",
    "append p1 0 0 1; retain; retain",
    "replicate",
    setup="append p9 0 0 1; shrink 1 0; shrink 2 0",
    retention_bytes="0",  # all committed records expire: names become free, for any size of files
)
REUSE = (
    ("d0", "commit 1.1 b2"),  # broker 2 leads; d0 is about to append there
    ("d1", "create 2.local b2"),  # d1 has appended 1.1 ...
    ("d2", "read 1.1 b2"),  # ... which d2 is about to copy to broker 1
    ("d1", ""),  # it expires, and is deleted
    ("d0", ""),  # d0 gives its name to other records, sees that they are in no log, and appends them again
    ("d2", ""),
)
REMEMBERED = small(
    "append p0 0 0 1; append p0 1 0 1",
    "append p1 0 0 1; retain; retain",
    setup="append p9 0 0 1",
    retention_bytes="0",
)
FORGOTTEN = (
    ("d0", "commit 2.1 b2"),  # d0 has appended 1.1, and is about to append after it
    ("d1", ""),  # d1 has appended 2.1; it expires, and is deleted
    ("d0", ""),  # d0 gives its name to other records
)
LATE_MERGE = small(
    "merge",
    "reseal 1; compact",
    setup="append p9 0 0 1; append p9 1 0 1; append p9 2 0 1; append p9 3 0 1; append p9 4 0 1; append p9 5 0 1",
    cleanup_policy="compact",
    segment_merge_min_files="2",
)
MERGED_LATE = (
    ("d0", "commit 0-6.1 b2"),  # d0 is about to name a merge of all appends
    ("d1", ""),  # a rule removes records of all but the last
    ("d0", ""),
)
REMOTE = {
    "cleanup_policy": "compact",
    "remote_storage_enable": "true",
    "local_retention_bytes": "-1",
    "min_cleanable_dirty_ratio": "0",
    "segment_bytes": "1",
}
ALL_REMOTE = "; ".join(f"append p9 {number} 0 1" for number in range(6)) + "; tier"
BOTH_COMPACT = small("compact", "compact", setup=ALL_REMOTE, **REMOTE)
REMOVED_LATE = (
    ("d0", "commit table remote"),  # d0 is about to replace the rewritten segments
    ("d1", ""),  # d1 replaces them
    ("d0", ""),
)
VACUUMED = replace(small("compact", "vacuum_at_once", setup=ALL_REMOTE, **REMOTE), tick_ms=1)
VACUUMED_EARLY = (
    ("d0", "commit table remote"),  # d0 is about to list the segments that it has made
    ("d1", ""),
    ("d0", ""),
)
LATE_MERGE_OF_ERASED = replace(
    small(
        "merge",
        "erase 0 now",
        setup="; ".join(f"append p9 {number} 0 1" for number in range(6)),
        segment_merge_min_files="2",
    ),
    tags=frozenset({"erase"}),
)
ERASED_LATE = (
    ("d0", "commit 0-6.1 b2"),  # d0 is about to name a merge of all appends
    ("d1", ""),  # an erasure rewrites some of them
    ("d0", ""),
)
BEFORE = "; ".join(f"append p9 {number} 0 1" for number in range(6))
KEPT = {name: text for name, text in REMOTE.items() if name != "cleanup_policy"}
UPLOADED_MEANWHILE = replace(small("tier", "erase 0 now", setup=BEFORE, **KEPT), tags=frozenset({"erase tiered"}))
LISTED_MEANWHILE = (
    ("d0", "commit table remote"),  # d0 has read the metadata, and is about to list what it has uploaded
    ("d1", "commit table remote"),  # d1 has committed the erasure, and saw no segment: it is about to record it
    ("d0", ""),
    ("d1", ""),
)
LISTED_AFTERWARDS = (
    ("d0", "commit table remote"),
    ("d1", ""),  # d1 has nothing to rewrite in the table
    ("d0", ""),
)
ERASED_TOO_EARLY = replace(
    small(
        "compact",
        "erase 0 now",
        setup="; ".join(f"append p9 {number} 0 3" for number in range(4)) + "; tier; retain; retain",
        **{**REMOTE, "local_retention_bytes": "0"},
    ),
    tags=frozenset({"erase compact tiered"}),
)
NOT_COMPACTED = (
    ("d0", "commit table remote"),  # d0 has committed a rule, and is about to replace segments by it
    ("d1", ""),  # no broker has an offset below its bound
    ("d0", ""),
)
STAGED = replace(
    small("tier", "erase 0 now", "look_for_erased", setup=BEFORE, **KEPT), tags=frozenset({"erase tiered"})
)
STAGED_BEFORE = (
    ("d0", "commit 0.1 bremote"),  # d0 has staged the first upload, and is about to name it
    ("d1", ""),
    ("d0", ""),
    ("d2", ""),
)
UNSEEN = small(
    "replicate",
    "unfence 3; replicate",
    "append_leader 0 0 1 leader",
    setup="append p9 0 0 1; fence_by_hand 3",
    brokers=3,
    copies=3,
)
JOINED_UNSEEN = (
    ("d0", "list 9) b2"),  # d0 has read the metadata: broker 3 is fenced
    ("d1", ""),  # broker 3 joins the ISR
    ("d2", ""),  # a record for the leader alone
    ("d0", ""),  # d0 copies it to broker 2 only
)
REVIVED = small(
    "append p0 0 0 1",
    "elect 2",
    "replicate",
    "elect 1",
    "retain",
    "append p0 0 0 1",
    setup="append p9 0 0 1",
    brokers=3,
    copies=3,
)
REVIVAL = (
    ("d0", "commit 1.1 b2"),  # 1.1 is on broker 3, which leads, and on 1
    ("d1", ""),
    ("d2", "create 2.epoch b1"),  # broker 3 joins epoch 2 of broker 2: 1.1 is dead there
    ("d3", ""),
    ("d4", "delete 1.1 b3"),
    ("d5", ""),  # broker 1 leads epoch 3 and has 1.1; broker 3 joins: it lives again, and is acknowledged
    ("d4", ""),
)

PASSED = small(
    "replicate",
    "fence 2; append p0 0 0 1; tier; append p0 1 0 1",
    setup="append p9 0 0 1; tier",
    remote_storage_enable="true",
    segment_bytes="1",
)
PASSED_MEANWHILE = (
    ("d0", "table load bremote"),  # d0 has read the metadata: broker 2 leads
    ("d1", ""),  # broker 1 leads, and tiers records that broker 2 lacks; its log continues after them
    ("d0", ""),
)

FORGETFUL = {name.replace(".", "_"): value for name, value in EXPIRES_SOONER.items()}
EXPANDING = replace(
    small(
        "append p0 0 0 1; append p0 1 0 1",
        "replicate",
        "append_leader 0 0 1 leader; replicate",
        setup="append p9 0 0 1; shrink 1 0; shrink 2 0",
    ),
    schedule="priorities",
    horizon=60,
)
LEFT_BEHIND = replace(
    small("append_leader 0 0 1 leader; maintain 5000", setup="append p9 0 0 1"), fault_rate=0.03, horizon=60
)
ON_ITS_WAY = replace(small("append_once 0 0 1 all", "append_once 0 0 1 all"), late_write_rate=0.2, horizon=40)
LAST_MEMBER = replace(
    small("fence 1; register 2", setup="append p9 0 0 1"),
    events=((0, "replace", 2),),  # while broker 1 is in the ISR too; then it is fenced, and 2 the last member
    constant_roots=False,
)

AHEAD = replace(
    small("append p1 0 0 1; append_again p0 0", setup="append p0 0 0 1", **FORGETFUL), ahead_ms=(DAYS_APART_MS,)
)
BEHIND = replace(
    small("append p0 0 0 1", "append p1 0 0 1", "append p2 0 0 1; append_again p0 0", **FORGETFUL),
    ahead_ms=(-DAYS_APART_MS, 0, 0),
)


def in_pages(configuration: Configuration) -> Configuration:
    """Let every listing take a page for each name."""
    return replace(configuration, page=1)


def overlapping(configuration: Configuration) -> Configuration:
    """Let files leave the log some time before they are deleted."""
    configs = dict(configuration.shape.topic_configs)
    configs |= {"file.delete.delay.ms": "40", "retention.bytes": "6000", "segment.bytes": "5000"}
    return replace(configuration, shape=replace(configuration.shape, topic_configs=tuple(configs.items())))


def deleting(configuration: Configuration) -> Configuration:
    """Let files leave the log and be deleted immediately."""
    configs = dict(configuration.shape.topic_configs)
    configs |= {"file.delete.delay.ms": "0", "retention.bytes": "2500", "segment.bytes": "1073741824"}
    return replace(configuration, shape=replace(configuration.shape, topic_configs=tuple(configs.items())))

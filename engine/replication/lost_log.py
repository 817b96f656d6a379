"""Lost logs: the metadata shows that the partition had records (``PartitionImage.written_to``), but its leader has
none of them, and the leader's log does not begin after them.

Every member of the ISR has all committed records. A leader drops them only by a local start, which is never
deleted. So a leader whose log is empty below that offset has lost its folder or files. The partition looks new,
and its leader would assign offsets a second time.

If another member of the ISR has the log, this member becomes the leader (``stratalog.engine.replicas.damaged``).
If the remote log has records, the leader continues from the end of the remote log (``remote_end``). If it has
none, an operator lets the log begin again at the last known offset (``recover --keep brokers``).

The metadata records an offset up to which there were records, but not the last such offset. The recorded offset is
updated each time the number of records has doubled, because recording the last offset would cost a commit of the
metadata per append. So it is unknown whether there were records after the known offset, and every message says so.
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.listing import ReplicaLog


class LogLostError(CorruptionError, code="LOG_LOST"):
    """The partition had records, and its leader has none of them. If no replica has records, and neither does the
    remote log, ``recover`` lets the log begin again.
    """


def is_lost(view: PartitionView, log: ReplicaLog) -> bool:
    """Whether a replica that should hold all committed records has none of them."""
    return not log.chain and log.log_end < view.written_to


def begins_again_at(view: PartitionView) -> int:
    """The last known offset of a lost log: the log begins again there."""
    return max(view.log_start_offset, view.written_to)


def may_begin_again(view: PartitionView) -> bool:
    """Whether a lost log may begin again. It must not begin again after a compaction, or during an erasure: the
    metadata then refuses an election that loses records (``ElectLeaders``).
    """
    return not view.rules and not any(one.offsets for one in view.erasures)


def unknown_behind(view: PartitionView) -> str:
    """A text about the unknown part of a log that begins again."""
    return (
        f"it is unknown whether there were records from offset {begins_again_at(view)} on; if so, their offsets "
        "are assigned again"
    )


def lost_log(replicas: PartitionReplicas) -> LogLostError:
    """The error for a lost log."""
    view, leader = replicas.view, replicas.leader
    remote = "" if replicas.remote is None else " Its remote log has no records either."
    if replicas.remote is not None and replicas.remote.unknown:
        remote = " It is unknown whether the remote tier has records, because it does not answer."
    if may_begin_again(view):
        otherwise = (
            "If no replica has the records, recover --keep brokers --dry-run shows the loss; without --dry-run it "
            f"restarts the log at offset {begins_again_at(view)}: {unknown_behind(view)}"
        )
    else:
        otherwise = (
            "Records were removed from the log by compaction or an erasure, so the log cannot begin again, and "
            "recover refuses it: bring back the storage of a broker that was in the ISR, then run replicate. If "
            "the storage of all these brokers is lost, delete the topic and create it again; a mirror then copies "
            "the topic from its source"
        )
    return LogLostError(
        f"{view} had records: the high watermark reached {view.written_to} or more. But {leader} has no records: "
        f"its files are gone.{remote} Nothing is appended. Run replicate, which elects an ISR member "
        f"that has the records. {otherwise}",
        broker_id=leader.broker_id,
    )


def check_not_lost(replicas: PartitionReplicas, log: ReplicaLog) -> None:
    """Check that the leader's ``log`` or the remote log has records of the partition. Reads the remote log only if
    the leader has none.

    Raises: LogLostError; see ``RemotePart.asked``.
    """
    if not is_lost(replicas.view, log):
        return
    asked = with_remote_asked(replicas)
    if not has_remote_records(asked):
        raise lost_log(asked)


def with_remote_asked(replicas: PartitionReplicas) -> PartitionReplicas:
    """Read the remote log of the partition, and return the replicas with it. Raises: see ``RemotePart.asked``."""
    return replicas if replicas.remote is None else replace(replicas, remote=replicas.remote.asked())


def has_remote_records(replicas: PartitionReplicas) -> bool:
    """Whether the remote log, if it was read, extends beyond the log start."""
    tail = replicas.remote_tail
    return tail is not None and (tail.end or 0) > replicas.view.log_start_offset

"""A log that is gone: the metadata know that the partition had records (``PartitionImage.written_to``), and its
leader has none, nor does its log begin behind them.

Whatever is committed is on every member of the ISR. A leader has let it go only where its local start says so, and
nothing ever deletes that. So a leader with an empty log below that offset has lost its folder, or its files. The
partition looks like a new one then, and would give offsets away a second time.

Where another member of the ISR still has the log, it leads (``stratalog.engine.replicas.damaged``). Where the
remote log has records, the leader goes on from its end (``remote_end``). Else a person lets the log begin again
(``recover --keep brokers``), at the last offset that is known.

The metadata know an offset up to which there were records, not the last one: it is noted when there are twice as
many, so that appends cost no commit of the metadata. To know the last one would take a commit for each append. So
whether there were records behind the known offset is unknown, and every answer says so.
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.listing import ReplicaLog


class LogLostError(CorruptionError):
    """The partition had records, and its leader has none of them; where no other replica has any either, nor a
    remote log, ``recover`` lets the log begin again."""

    code = "LOG_LOST"


def is_lost(view: PartitionView, log: ReplicaLog) -> bool:
    """Whether a replica that holds all that is committed has none of the records that were there."""
    return not log.chain and log.log_end < view.written_to


def begins_again_at(view: PartitionView) -> int:
    """The last offset of a lost log that is known: there it begins again."""
    return max(view.log_start_offset, view.written_to)


def unknown_behind(view: PartitionView) -> str:
    """For people: what is not known of a log that begins again."""
    return (
        f"whether there were records from offset {begins_again_at(view)} on is not known; if so, their offsets "
        "are given again"
    )


def lost_log(replicas: PartitionReplicas) -> LogLostError:
    """The error of a log that is lost."""
    view, leader = replicas.view, replicas.leader
    remote = "" if replicas.remote is None else " Its remote log has none of them."
    if replicas.remote is not None and replicas.remote.unknown:
        remote = " Whether its remote log has them is not known, for it does not answer."
    return LogLostError(
        f"{view}: it had records, the high watermark reached {view.written_to} or more, and {leader} has none of "
        f"them: its files are gone.{remote} Nothing is appended. Run replicate: a member of the ISR that has them "
        "then leads. Where no replica has them, recover --keep brokers --dry-run shows what is lost; without "
        f"--dry-run it lets the log begin again, at offset {begins_again_at(view)}: {unknown_behind(view)}",
        broker_id=leader.broker_id,
    )


def check_not_lost(replicas: PartitionReplicas, log: ReplicaLog) -> None:
    """The leader's ``log`` has something of the records that were there; or its remote log has, which is asked
    only where the leader has nothing.

    Raises: LogLostError; as ``RemotePart.asked``.
    """
    if not is_lost(replicas.view, log):
        return
    asked = with_remote_asked(replicas)
    if not has_remote_records(asked):
        raise lost_log(asked)


def with_remote_asked(replicas: PartitionReplicas) -> PartitionReplicas:
    """The same, with its remote log read. Raises: as ``RemotePart.asked``."""
    return replicas if replicas.remote is None else replace(replicas, remote=replicas.remote.asked())


def has_remote_records(replicas: PartitionReplicas) -> bool:
    """Whether the remote log, where it was read, goes beyond the log start."""
    known = None if replicas.remote is None else replicas.remote.known
    return known is not None and (known.end or 0) > replicas.view.log_start_offset

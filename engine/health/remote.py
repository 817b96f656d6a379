"""Findings about the remote tier: failing uploads, overdue segments, tables changed by other programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from shlex import join, quote

from stratalog.engine.driver.storage import Storage
from stratalog.engine.health.finding import REMOTE_TIER, Cause, HealthFinding, Severity
from stratalog.engine.health.partitions import known_end
from stratalog.engine.health.sight import SeenPartition, Sight
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import DivergentRemoteError, LogBehindRemoteError
from stratalog.engine.upkeep.memory.runs import VERIFY
from stratalog.engine.upkeep.memory.trouble import NO_TROUBLE
from stratalog.engine.upkeep.tiering.remote_logs import ask_for_logs
from stratalog.partitions import paths
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.listing import Listing
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store.address import scheme_of
from stratalog.tiering.foreign_commits import ForeignWriteError
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.schedule import Entry

REMOTE_TABLE = "remote-table"
UPLOADS = "RemoteCopyErrorsPerSec"
OFFLINE = "offline-remote-tier"


def remote_findings(
    storage: Storage, sight: Sight
) -> tuple[list[HealthFinding], dict[str, int | None], dict[str, RemoteLog]]:
    """Return findings, figures, and the readable remote logs by topic id. Each table is read once; the backlog
    comes from the listings.
    """
    tiered = [one for one in sight.partitions if one.config is not None and one.config.remote_storage_enable]
    if not tiered:
        return [], {}, {}
    waiting, figures = _waiting(sight, [one for one in tiered if one.config and one.config.copies_to_remote])
    tables, logs = _tables(storage, sight)
    lacking = list(_lacking(tiered, logs))
    away = _away(storage, sight, tables) if tables else None
    if away is None and lacking and not any(log.segments for log in logs.values()):
        away = _offline(sight, "the remote tier answers, but does not have this cluster's tables")
    because = frozenset[Cause]() if away is None else frozenset[Cause]({REMOTE_TIER})
    behind = _behind(storage, sight, tiered, logs)
    found = [*_failing(sight, tiered, because), *tables]
    if away is not None:
        found = [away, *(replace(one, because=one.because or because) for one in found)]
    else:
        found += [_lacks(sight, topic, dropped) for topic, dropped in lacking]
    return [*behind, *found, *waiting], figures, logs


def _away(storage: Storage, sight: Sight, tables: Sequence[HealthFinding]) -> HealthFinding | None:
    """Return the finding that the remote tier does not answer. If a table could not be read, the tier is tried
    once more.
    """
    assert storage.remote is not None
    try:
        storage.remote.list(f"{paths.DESCRIPTIONS}/{storage.file.cluster_id}")
    except StratalogError as error:
        return _offline(sight, f"the remote tier does not answer ({error})")
    return None


def _offline(sight: Sight, what: str) -> HealthFinding:
    uploads = {"tier"} if any(entry.attempts for entry in sight.entries.values()) else frozenset[str]()
    steps = sorted((sight.times.failing.keys() | uploads) - {VERIFY})
    return HealthFinding(
        severity=Severity.ERROR,
        kind=OFFLINE,
        subjects=(REMOTE_TIER,),
        what=f"{what}. Mount the tier, bring its server back, or correct the cluster file, then run the command",
        do=sight.commands("maintain", *(("--only", ",".join(steps)) if steps else ())),
    )


def _lacking(tiered: list[SeenPartition], logs: Mapping[str, RemoteLog]) -> Iterator[tuple[str, str]]:
    """Return the topics whose leaders have deleted records that are not in the remote log, each with the first
    offsets of such records.
    """
    dropped: dict[str, str] = {}
    for seen in tiered:
        log, start = logs.get(seen.view.topic_id), seen.view.log_start_offset
        if seen.leader is None or log is None or start >= seen.leader.local_start:
            continue
        held = log.of_partition(seen.view.partition)
        if not held or held[0].base_offset > start or held[-1].next_offset < seen.leader.local_start:
            dropped.setdefault(seen.view.topic, f"[{start}, {seen.leader.local_start}) of {seen}")
    yield from sorted(dropped.items())


def _lacks(sight: Sight, topic: str, dropped: str) -> HealthFinding:
    what = f"the leaders have deleted the tiered offsets {dropped}, which the topic's table does not have"
    return _of_table(topic, what, sight.commands("heal", topics=[topic]))


def _behind(
    storage: Storage, sight: Sight, tiered: list[SeenPartition], logs: Mapping[str, RemoteLog]
) -> Iterator[HealthFinding]:
    """Findings about leaders whose logs end before their remote logs, or have different records. A leader whose
    folder certainly has the last remote segment, judging by file names, is not examined further.
    """
    suspicious: list[PartitionReplicas] = []
    for seen in tiered:
        log, replicas = logs.get(seen.view.topic_id), storage.replicas(seen.view)
        segments = () if log is None else log.of_partition(seen.view.partition)
        if seen.leader is None or log is None or replicas.remote is None or not segments:
            continue
        if not _reaches(seen.leader, segments[-1]):
            suspicious.append(replicas.with_remote_log(log))

    def look(replicas: PartitionReplicas) -> None:
        replicas.check_remote_end(replicas.leader.log())

    for outcome in storage.threads.run(look, suspicious):
        match outcome:
            case Failed(replicas, LogBehindRemoteError() as error):
                do = sight.commands("replicate", topics=[replicas.view.topic])
                yield _of_partition(replicas, str(error), do)
            case Failed(replicas, DivergentRemoteError() as error):
                do = sight.commands("recover", replicas.view.topic, "--keep", "remote", "--dry-run")
                yield _of_partition(replicas, str(error), do)


def _reaches(leader: Listing, last: RemoteSegment) -> bool:
    """Whether a leader's folder certainly has the last remote segment, or later records, in a history that
    includes its leader epoch.
    """
    itself = any(file.name == last.name and file.object.size_bytes == last.size_bytes for file in leader.data)
    return leader.joined_epoch >= last.epoch and (itself or known_end(leader) >= last.next_offset)


def _of_partition(replicas: PartitionReplicas, what: str, do: str) -> HealthFinding:
    return HealthFinding(
        severity=Severity.ERROR, kind="behind-remote", subjects=(str(replicas),), what=what, do=do
    )


def _failing(sight: Sight, tiered: list[SeenPartition], away: frozenset[Cause]) -> Iterator[HealthFinding]:
    """Findings about failing uploads, grouped by failure. They come from the list of the remote log manager. A
    single failure is not reported, because a retry may succeed. ``away``: the remote tier, if it does not answer.
    """
    alone = not sight.times.failing.get("tier", NO_TROUBLE).is_there
    alike: dict[tuple[bool, str, frozenset[Cause]], list[tuple[SeenPartition, Entry]]] = {}
    for seen in tiered:
        entry = sight.entries.get(seen.view.key)
        if entry is not None and entry.attempts:
            key = entry.attempts > 1, entry.code, sight.keeping_offline(seen.view) or away
            alike.setdefault(key, []).append((seen, entry))
    for (again, code, because), failing in alike.items():
        yield HealthFinding(
            severity=Severity.ERROR if again else Severity.WARNING,
            kind=UPLOADS,
            subjects=tuple(str(seen) for seen, _ in failing),
            what=f"copies to the remote tier fail{' repeatedly' if again else ''}: {code}: "
            f"{failing[0][1].message}",
            do=sight.commands("tier", topics={seen.view.topic for seen, _ in failing} if alone else ()),
            since_ms=min(entry.failing_since_ms for _, entry in failing),
            because=because,
        )


def _waiting(sight: Sight, copied: list[SeenPartition]) -> tuple[list[HealthFinding], dict[str, int | None]]:
    """The leaders' files after the last known ends of the remote logs. The figures are None if a leader was not
    listed.
    """
    findings: list[HealthFinding] = []
    records = size_bytes = 0
    oldest: list[int] = []
    known = all(seen.leader is not None for seen in copied)
    for seen in copied:
        if seen.leader is None or seen.config is None:
            continue
        entry = sight.entries.get(seen.view.key)
        end = max(0 if entry is None else entry.remote_end or 0, seen.view.log_start_offset)
        files = [f for f in seen.leader.data if f.name.least_end > end]
        if not files:
            continue
        since_ms = min(file.object.modified_ms for file in files)
        records += max(0, max((mark.offset for mark in seen.leader.watermarks), default=0) - end)
        size_bytes += sum(file.object.size_bytes for file in files)
        oldest.append(since_ms)
        due_ms = since_ms + seen.config.segment_ms + max(0, seen.config.remote_copy_lag_ms)
        if sight.now_ms - due_ms > sight.max_delay_ms:
            findings.append(
                HealthFinding(
                    severity=Severity.ERROR,
                    kind="RemoteCopyLagBytes",
                    subjects=(str(seen),),
                    what="the oldest records are overdue for the remote tier; a restore would lose these records",
                    do=sight.commands("tier", topics=[seen.view.topic]),
                    since_ms=due_ms,
                )
            )
    now_ms = sight.now_ms
    return findings, {
        "RemoteCopyLagBytes": size_bytes if known else None,
        "remote-copy-lag-records": records if known else None,
        "remote-copy-lag-ms": max(0, now_ms - min(oldest, default=now_ms)) if known else None,
    }


def _tables(storage: Storage, sight: Sight) -> tuple[list[HealthFinding], dict[str, RemoteLog]]:
    """Findings about each topic's table."""
    findings: list[HealthFinding] = []
    logs: dict[str, RemoteLog] = {}
    topics = [topic for _, topic in sorted(sight.image.topics.items())]
    known = {seen.view.topic_id for seen in sight.partitions if seen.config is not None}
    for outcome in ask_for_logs(storage, sight.image, [topic for topic in topics if topic.topic_id in known]):
        topic = outcome.item.name
        match outcome:
            case Failed(_, ForeignWriteError() as error):
                what = (
                    "another program has changed the records of the topic's table, so stratalog neither reads "
                    "nor extends the table "
                )
                findings.append(_of_table(topic, f"{what}until it is restored: {error}", _restore(error)))
            case Failed(_, error):
                verify = sight.commands("verify", topics=[topic])
                findings.append(_of_table(topic, f"the topic's table cannot be read: {error}", verify))
            case Done(_, log):
                logs[outcome.item.topic_id] = log
                if log.rewrite is not None:
                    heal = sight.commands("heal", topics=[topic])
                    findings.append(_of_table(topic, f"{log.rewrite}. The command reverts the change", heal))
    return findings, logs


def _of_table(topic: str, what: str, do: str) -> HealthFinding:
    return HealthFinding(severity=Severity.ERROR, kind=REMOTE_TABLE, subjects=(topic,), what=what, do=do)


def _restore(error: ForeignWriteError) -> str:
    """Return Delta's command that restores the table."""
    if scheme_of(error.table) in (None, "file"):
        code = f"from deltalake import DeltaTable; DeltaTable({error.table!r}).restore({error.version})"
        return join(["python", "-c", code])
    return f"spark-sql -e {quote(f'RESTORE TABLE delta.`{error.table}` TO VERSION AS OF {error.version}')}"

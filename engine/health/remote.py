"""The remote tier: uploads that fail, segments that wait for too long, tables that others have written to."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import join, quote

from stratalog.engine.driver.context import Context
from stratalog.engine.health.finding import HealthFinding, Severity
from stratalog.engine.health.sight import SeenPartition, Sight
from stratalog.engine.upkeep.tiering.remote_logs import ask_for_logs
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store.address import scheme_of
from stratalog.tiering.foreign_commits import ForeignWriteError
from stratalog.tiering.remote_log import RemoteLog


def remote_findings(
    context: Context, sight: Sight
) -> tuple[list[HealthFinding], dict[str, int | None], dict[str, RemoteLog]]:
    """Findings, figures, and the remote logs that could be read, by topic id. Each table is read once; the backlog
    is that of the look.
    """
    tiered = [one for one in sight.partitions if one.config is not None and one.config.remote_storage_enable]
    if not tiered:
        return [], {}, {}
    waiting, figures = _waiting(sight, [one for one in tiered if one.config and one.config.copies_to_remote])
    tables, logs = _tables(context, sight)
    return [*_failing(sight, tiered), *waiting, *tables], figures, logs


def _failing(sight: Sight, tiered: list[SeenPartition]) -> Iterator[HealthFinding]:
    """By the list of the remote log manager. One failure may have passed when it is tried again."""
    for seen in tiered:
        entry = sight.entries.get(seen.view.key)
        if entry is not None and entry.attempts:
            yield HealthFinding(
                severity=Severity.ERROR if entry.attempts > 1 else Severity.WARNING,
                kind="RemoteCopyErrorsPerSec",
                subjects=(str(seen),),
                what=f"copies to the remote tier fail with {entry.code}"
                + (", time after time" if entry.attempts > 1 else ""),
                do=sight.commands("tier", topics=[seen.view.topic]),
                since_ms=entry.failing_since_ms,
            )


def _waiting(sight: Sight, copied: list[SeenPartition]) -> tuple[list[HealthFinding], dict[str, int | None]]:
    """The files of leaders behind the remote logs, as these were last seen to end."""
    findings: list[HealthFinding] = []
    records = size_bytes = 0
    oldest: list[int] = []
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
                    what="its oldest records should be in the remote tier, and a restore would lack them",
                    do=sight.commands("tier", topics=[seen.view.topic]),
                    since_ms=due_ms,
                )
            )
    now_ms = sight.now_ms
    return findings, {
        "RemoteCopyLagBytes": size_bytes,
        "remote-copy-lag-records": records,
        "remote-copy-lag-ms": max(0, now_ms - min(oldest, default=now_ms)),
    }


def _tables(context: Context, sight: Sight) -> tuple[list[HealthFinding], dict[str, RemoteLog]]:
    """Each topic's table, as others have left it."""
    findings: list[HealthFinding] = []
    logs: dict[str, RemoteLog] = {}
    topics = [topic for _, topic in sorted(sight.image.topics.items())]
    known = {seen.view.topic_id for seen in sight.partitions if seen.config is not None}
    for outcome in ask_for_logs(context, sight.image, [topic for topic in topics if topic.topic_id in known]):
        topic = outcome.item.name
        match outcome:
            case Failed(_, ForeignWriteError() as error):
                what = "somebody else has changed the records of its table, and it is read and added to no more "
                findings.append(_of_table(topic, f"{what}until it is restored: {error}", _restore(error)))
            case Failed(_, error):
                findings.append(
                    _of_table(topic, f"its table cannot be read: {error}", _remedy(sight, topic, error))
                )
            case Done(_, log):
                logs[outcome.item.topic_id] = log
                if log.rewrite is not None:
                    heal = sight.commands("verify", "--deep", "--heal", topics=[topic])
                    findings.append(_of_table(topic, f"{log.rewrite}. This takes it back", heal))
    return findings, logs


def _of_table(topic: str, what: str, do: str) -> HealthFinding:
    return HealthFinding(severity=Severity.ERROR, kind="remote-table", subjects=(topic,), what=what, do=do)


def _remedy(sight: Sight, topic: str, error: StratalogError) -> str:
    return sight.commands("verify", topics=[topic])


def _restore(error: ForeignWriteError) -> str:
    """The command of Delta that makes the table what it was."""
    if scheme_of(error.table) in (None, "file"):
        code = f"from deltalake import DeltaTable; DeltaTable({error.table!r}).restore({error.version})"
        return join(["python", "-c", code])
    return f"spark-sql -e {quote(f'RESTORE TABLE delta.`{error.table}` TO VERSION AS OF {error.version}')}"

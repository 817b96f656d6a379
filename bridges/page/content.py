"""The content of a page as plain data. Pure, from the result of ``health`` and the rows of the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stratalog.bridges.page.activity import Row, activity, runs
from stratalog.bridges.page.groups import COMMIT_COLUMNS, group_rows
from stratalog.bridges.page.tiers import PENDING, TIERS, TieredLog, tiered_log
from stratalog.engine.admin.describe_cluster import broker_state
from stratalog.engine.config.settings import configs_in_force
from stratalog.engine.health.finding import HealthFinding, HealthReport
from stratalog.engine.health.health import Examined
from stratalog.engine.health.partitions import known_end
from stratalog.engine.health.sight import SeenPartition, Sight
from stratalog.engine.metadata.image import BrokerImage
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions.amounts import bytes_text
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.listing import Listing
from stratalog.partitions.printable import printable
from stratalog.partitions.retention import UNLIMITED
from stratalog.tiering.remote_log import RemoteLog

MOST_SUBJECTS = 500
"""The number of subjects to name for one finding."""
PARTITION_COLUMNS = (
    *("topic", "partition", "state", "leader", "epoch", "log_start", "local_start", "high_watermark", "log_end"),
    *("remote_start", "remote_end", "spans", "sizes", "replicas", "findings"),
)
"""The columns of a partition. Partitions are arrays, because there may be many: ``topic`` is an index of
``topics``; ``spans`` are [tier, start, end], and ``sizes`` are bytes by index of ``tiers``; ``findings`` are
indexes.
"""
REPLICA_COLUMNS = ("broker", "state", "local_start", "log_end", "files", "bytes")
_TABLES = "remote-table"
"""The kind of finding whose subjects are topics; a topic's name may equal a partition's name."""


def content(
    examined: Examined, history: Sequence[Row], history_unread: str | None, cluster_id: str
) -> dict[str, Any]:
    """The content of the page, for JSON; every text is printable. ``history`` has rows of ``Cluster.history``;
    ``history_unread`` says why it could not be read.
    """
    sight, report = examined.sight, examined.report
    named = {topic_id: number for number, topic_id in enumerate(sorted(sight.image.topics, key=_by_name(sight)))}
    logs = [(seen, _log(seen, examined)) for seen in sight.partitions]
    by_name = {(seen.view.topic, seen.view.partition): log for seen, log in logs}
    findings = _of_partitions(report)
    partitions = [
        [named[seen.view.topic_id], *_partition(seen, log, sight, findings.get(str(seen), []))]
        for seen, log in logs
    ]
    partitions.sort(key=lambda row: row[:2])
    described = {
        "cluster": cluster_id,
        "now_ms": report.now_ms,
        "requests": report.counts.requests,
        "seconds": round(report.seconds, 2),
        "health": _health(report),
        "figures": dict(report.totals),
        "tiers": TIERS,
        "topics": _topics(examined, logs, named, partitions),
        "partition_columns": PARTITION_COLUMNS,
        "replica_columns": REPLICA_COLUMNS,
        "partitions": partitions,
        "brokers": _brokers(sight),
        "voters": _voters(sight),
        "commit_columns": COMMIT_COLUMNS,
        "groups": group_rows(sight.image, examined.groups, report.lags, by_name),
        "configs": {key: [value, source] for key, value, source in configs_in_force({}, sight.image.configs)},
        "history_unread": history_unread,
        "activity": activity(history),
        "runs": runs(history),
    }
    shown: dict[str, Any] = _printable(described)
    return shown


def unopened_content(report: HealthReport, cluster_id: str) -> dict[str, Any]:
    """The content for a cluster that cannot be opened: only its health."""
    shown: dict[str, Any] = _printable(
        {
            "cluster": cluster_id,
            "now_ms": report.now_ms,
            "requests": 0,
            "seconds": 0,
            "health": _health(report),
            "figures": {},
            "tiers": TIERS,
            "partition_columns": PARTITION_COLUMNS,
            "replica_columns": REPLICA_COLUMNS,
            "commit_columns": COMMIT_COLUMNS,
            "configs": {},
            **{part: [] for part in ("topics", "partitions", "brokers", "voters", "groups", "runs")},
            "history_unread": None,
            "activity": None,
        }
    )
    return shown


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(name): _printable(one) for name, one in value.items()}
    return [_printable(one) for one in value] if isinstance(value, list | tuple) else value


def _by_name(sight: Sight) -> Callable[[str], str]:
    return lambda topic_id: sight.image.topics[topic_id].name


# ------------------------------------------------------------------------------------------------ health


def _health(report: HealthReport) -> dict[str, Any]:
    return {
        "findings": [
            {
                "severity": str(one.severity),
                "kind": one.kind,
                "subjects": names[:MOST_SUBJECTS],
                "count": len(names),
                "since_ms": one.since_ms,
                "what": one.what,
                "do": one.do,
            }
            for one in report.findings
            for names in (_subjects(one),)
        ],
        "unread": [*map(str, report.unread)],
    }


def _subjects(one: HealthFinding) -> list[str]:
    return [*dict.fromkeys((*one.subjects, *(name for names in one.affected.values() for name in names)))]


def _of_partitions(report: HealthReport) -> dict[str, list[int]]:
    """The findings of each partition, by its name."""
    found: dict[str, list[int]] = {}
    for number, one in enumerate(report.findings):
        for subject in _subjects(one) if one.kind != _TABLES else ():
            found.setdefault(subject, []).append(number)
    return found


# ------------------------------------------------------------------------------------------------ partitions


def _log(seen: SeenPartition, examined: Examined) -> TieredLog:
    remote = examined.remotes.get(seen.view.topic_id)
    entry = examined.sight.entries.get(seen.view.key)
    segments = () if remote is None else remote.of_partition(seen.view.partition)
    copies = (_seen(seen, broker, examined.sight) for broker in (seen.view.leader, *seen.view.isr))
    copy = next((one for one in copies if one is not None), None)
    return tiered_log(seen, copy, segments, None if entry is None else entry.remote_end)


def _seen(seen: SeenPartition, broker: int | None, sight: Sight) -> Listing | None:
    """The folder of a replica, if its broker is in service, because an unmounted volume would look like an empty
    folder.
    """
    found = None if broker is None or not sight.usable(broker) else seen.replicas.get(broker)
    return found if isinstance(found, Listing) else None


def _partition(seen: SeenPartition, log: TieredLog, sight: Sight, findings: list[int]) -> list[Any]:
    """The columns of a partition after ``topic``."""
    view = seen.view
    return [
        *(view.partition, _state(seen, sight), view.leader, view.leader_epoch),
        *(log.start, log.local_start, log.high_watermark, log.end, log.remote_start, log.remote_end),
        [[TIERS.index(tier), start, end] for tier, start, end in log.spans],
        [log.sizes.get(tier, 0) for tier in TIERS],
        [_replica(seen, broker, sight) for broker in view.replicas],
        findings,
    ]


def _state(seen: SeenPartition, sight: Sight) -> str:
    """The state of a partition, as in ``isr_findings``."""
    members = [broker for broker in seen.view.isr if sight.usable(broker)]
    least = 1 if seen.config is None else seen.config.min_insync_replicas
    if seen.view.leader is None or not members:
        return "offline"
    if len(members) < min(least, len(seen.view.replicas)):
        return "under min ISR"
    missing = any(b not in members for b in seen.view.replicas if b not in seen.view.joining)
    return "under-replicated" if missing else "reassigning" if seen.view.target else "in sync"


def _replica(seen: SeenPartition, broker: int, sight: Sight) -> list[Any]:
    view, found, copy = seen.view, seen.replicas.get(broker), _seen(seen, broker, sight)
    if copy is None:
        state = found.code if isinstance(found, CorruptionError) and sight.usable(broker) else "unreachable"
        return [broker, state, *[None] * 4]
    state = "in sync" if broker in view.isr else "being added" if broker in view.adding else "out of sync"
    end = max([known_end(copy), *(mark.offset for mark in copy.watermarks)])
    return [
        broker,
        "leader" if broker == view.leader else state,
        copy.local_start,
        end,
        len(copy.data),
        _bytes(copy),
    ]


def _bytes(copy: Listing) -> int:
    return sum(file.object.size_bytes for file in copy.data)


# ------------------------------------------------------------------------------------------------ topics


def _topics(
    examined: Examined,
    logs: Sequence[tuple[SeenPartition, TieredLog]],
    named: Mapping[str, int],
    partitions: Sequence[Sequence[Any]],
) -> list[dict[str, Any]]:
    of_topic: dict[str, list[tuple[SeenPartition, TieredLog]]] = {}
    for seen, log in logs:
        of_topic.setdefault(seen.view.topic_id, []).append((seen, log))
    states: dict[int, Counter[str]] = {}
    findings: dict[int, set[int]] = {}
    for number, _, state, *_, found in partitions:
        states.setdefault(number, Counter()).update([state])
        findings.setdefault(number, set()).update(found)
    for finding, one in enumerate(examined.report.findings):
        for subject in (*(one.subjects if one.kind == _TABLES else ()), *one.affected.get(_TABLES, ())):
            findings[named[examined.sight.image.topic_ids[subject]]].add(finding)
    return [
        {
            **_topic(examined, topic_id, of_topic.get(topic_id, [])),
            "states": states.get(number, {}),
            "findings": sorted(findings.get(number, ())),
        }
        for topic_id, number in named.items()
    ]


def _topic(examined: Examined, topic_id: str, logs: Sequence[tuple[SeenPartition, TieredLog]]) -> dict[str, Any]:
    """The columns of a topic. If no copy of a partition can be listed, its records and bytes on brokers are
    unknown.
    """
    sight, name = examined.sight, examined.sight.image.topics[topic_id].name
    copies = [copy for seen, _ in logs for b in seen.view.replicas if (copy := _seen(seen, b, sight)) is not None]
    unread = any(log.end is None for _, log in logs)
    waiting = (end - start for _, log in logs for tier, start, end in log.spans if tier == PENDING)
    return {
        "name": name,
        "internal": name in INTERNAL_TOPICS,
        "partitions": len(logs),
        "replication_factor": max((len(seen.view.replicas) for seen, _ in logs), default=0),
        "records": None if unread else sum(max(0, (log.end or 0) - log.start) for _, log in logs),
        "pending_records": sum(waiting),
        "local_bytes": None if unread else sum(map(_bytes, copies)),
        "remote_bytes": _remote_bytes(examined.remotes.get(topic_id)),
        "sizes": [sum(log.sizes.get(tier, 0) for _, log in logs) for tier in TIERS],
        "policy": _policy(logs[0][0]) if logs else "",
        "tiered": bool(logs and logs[0][0].view.tiered),
        "configs": dict(sight.image.topics[topic_id].configs),
    }


def _remote_bytes(remote: RemoteLog | None) -> int | None:
    """The end of the remote log; None if the topic is not tiered, or the remote log cannot be read."""
    return None if remote is None else sum(segment.size_bytes for segment in remote.all_segments())


def _policy(seen: SeenPartition) -> str:
    """The retention of a topic, as text."""
    config = seen.config
    if config is None:
        return "unreadable configs"
    if config.snapshots:
        return "latest record of each key"
    kept = _limits(config.retention_ms, config.retention_bytes)
    if not config.remote_storage_enable:
        return kept
    local = _limits(config.local_retention_ms, config.local_retention_bytes)
    return f"{kept}; local {local}" if local != kept else kept


def _limits(ms: int, size_bytes: int) -> str:
    limits = [] if ms == UNLIMITED else [_span(ms)]
    limits += [] if size_bytes == UNLIMITED else [bytes_text(size_bytes)]
    return " or ".join(limits) or "forever"


def _span(ms: int) -> str:
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= length:
            return f"{ms / length:.4g} {unit}"
    return f"{ms} ms"


# ------------------------------------------------------------------------------------------------ brokers


def _brokers(sight: Sight) -> list[dict[str, Any]]:
    leads: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    files: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for seen in sight.partitions:
        replicas.update(seen.view.replicas)
        leads.update(() if seen.view.leader is None else [seen.view.leader])
        for replica in seen.view.replicas:
            if (copy := _seen(seen, replica, sight)) is not None:
                files[replica] += len(copy.data)
                sizes[replica] += _bytes(copy)
    rows = []
    for broker_id, broker in sorted(sight.image.brokers.items()):
        space = sight.folders[broker_id].space if broker_id in sight.folders else None
        rows.append(
            {
                "broker": broker_id,
                "rack": broker.rack,
                "state": _state_of_broker(sight, broker),
                "leads": leads[broker_id],
                "replicas": replicas[broker_id],
                "files": files[broker_id] if sight.usable(broker_id) else None,
                "bytes": sizes[broker_id] if sight.usable(broker_id) else None,
                "used_ratio": None if space is None else round(space.used_ratio, 3),
                "log_dir": broker.log_dir,
            }
        )
    return rows


def _state_of_broker(sight: Sight, broker: BrokerImage) -> str:
    if broker.broker_id not in sight.in_file:
        return "not in the cluster file"
    state = broker_state(broker, sight.roots.get(broker.broker_id))
    return "cannot be listed" if state == "ok" and broker.broker_id in sight.unlisted else state


def _voters(sight: Sight) -> list[dict[str, Any]]:
    return [
        {
            "broker": found.voter.broker_id,
            "log_end": found.log_end,
            "behind": None if found.log_end is None else max(0, sight.quorum.end - found.log_end),
            "state": "votes" if found.error is None else str(found.error),
        }
        for found in sight.quorum.voters
    ]

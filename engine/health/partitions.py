"""Findings about partitions: leaders, the size of the ISR, lagging followers, damaged files and lost logs. Only
partitions that look suspicious in the listings are examined further.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.health.brokers import root_remedy
from stratalog.engine.health.finding import REMOTE_TIER, Cause, HealthFinding, Severity
from stratalog.engine.health.sight import SeenPartition, Sight
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.metadata.probed_roots import Same
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.logs import DescribeWork, ListedLog, ListedReplica, list_replicas
from stratalog.engine.replication.lost_log import LogLostError, check_not_lost, may_begin_again
from stratalog.engine.upkeep.memory.kept_times import METADATA_LOG
from stratalog.engine.upkeep.memory.trouble import Trouble
from stratalog.engine.upkeep.verification.audit import audit, failures_of
from stratalog.partitions.listing import Listing
from stratalog.partitions.paths import METADATA_TOPIC, DataName
from stratalog.partitions.runner import Failed

OFFLINE, UNDER_MIN, UNDER_REPLICATED = (
    "OfflinePartitionsCount",
    "UnderMinIsrPartitionCount",
    "UnderReplicatedPartitions",
)
DAMAGED = "damaged-replicas"
_WORST = (OFFLINE, UNDER_MIN, UNDER_REPLICATED)
_SAID = {
    UNDER_MIN: "fewer members of the ISR than min.insync.replicas: acks=all is refused, nothing is committed; ",
    UNDER_REPLICATED: "",
}


def isr_findings(sight: Sight) -> tuple[list[HealthFinding], dict[str, int | None]]:
    """Return findings about partitions without a leader, or with too few replicas in sync. Also return figures
    that count all such partitions, like Kafka's. A broker that does not answer counts as fenced.
    """
    alike: dict[tuple[str, tuple[int, ...]], list[PartitionView]] = {}
    counts = dict.fromkeys((OFFLINE, UNDER_REPLICATED, UNDER_MIN, "AtMinIsrPartitionCount"), 0)
    for seen in sight.partitions:
        view = seen.view
        members = [broker for broker in view.isr if sight.usable(broker)]
        original = [broker for broker in view.replicas if broker not in view.joining]
        missing = tuple(broker for broker in original if broker not in members)
        least = min(1 if seen.config is None else seen.config.min_insync_replicas, len(view.replicas))
        offline = not members or view.leader is None
        counts[OFFLINE] += offline
        counts[UNDER_MIN] += len(members) < least
        counts["AtMinIsrPartitionCount"] += len(members) == least
        counts[UNDER_REPLICATED] += bool(missing)
        if offline:
            alike.setdefault((OFFLINE, tuple(view.isr)), []).append(view)
        elif missing:
            kind = UNDER_MIN if len(members) < least else UNDER_REPLICATED
            alike.setdefault((kind, missing), []).append(view)
    findings = []
    for (kind, brokers), views in sorted(alike.items(), key=lambda one: _WORST.index(one[0][0])):
        found = _offline(sight, brokers, views) if kind == OFFLINE else _too_few(sight, kind, brokers, views)
        findings.append(found)
    figures: dict[str, int | None] = {
        **counts,
        "GlobalTopicCount": len(sight.image.topics),
        "GlobalPartitionCount": len(sight.partitions),
        "ReassigningPartitions": sum(bool(seen.view.target) for seen in sight.partitions),
        "PreferredReplicaImbalanceCount": sum(
            seen.view.leader not in (None, seen.view.replicas[0]) for seen in sight.partitions
        ),
    }
    return findings, figures


def _offline(sight: Sight, isr: tuple[int, ...], views: list[PartitionView]) -> HealthFinding:
    topics = {view.topic for view in views}
    unclean = sight.commands("elect", "--unclean", topics=topics)
    answering = [broker for broker in isr if isinstance(sight.roots.get(broker), Same)]
    if not isr:
        what, do = (
            "no leader: the storage of the last ISR members is lost. The command elects another replica as "
            "leader; records that only the lost storage had are then permanently lost. First check the plan "
            "(--dry-run)",
            unclean,
        )
    elif answering:
        what, do = "no leader, although a member of the ISR answers", root_remedy(sight, answering[0])
    else:
        what = (
            f"no member of the ISR ({_brokers(isr)}) answers, so the partition cannot be read or appended to. "
            "Bring a member back, then run the command; if all members are permanently lost, use elect --unclean"
        )
        do = root_remedy(sight, isr[0])
    found = _of_views(Severity.ERROR, OFFLINE, views, what, do)
    return replace(found, because=sight.keeping_offline(views[0]))


def _too_few(sight: Sight, kind: str, missing: tuple[int, ...], views: list[PartitionView]) -> HealthFinding:
    away = [broker for broker in missing if not sight.usable(broker)]
    what = f"{_SAID[kind]}not in sync: the replicas on {_brokers(missing)}"
    if away:
        found = _of_views(Severity.ERROR, kind, views, what, root_remedy(sight, away[0]))
        return replace(found, because=frozenset(away))
    severity = Severity.ERROR if kind == UNDER_MIN else Severity.WARNING
    return _of_views(
        severity, kind, views, what, sight.commands("replicate", topics={view.topic for view in views})
    )


def _brokers(ids: tuple[int, ...]) -> str:
    return f"broker{'s'[: len(ids) - 1]} {', '.join(map(str, ids))}"


def _of_views(severity: Severity, kind: str, views: Iterable[PartitionView], what: str, do: str) -> HealthFinding:
    names = tuple(str(view) for view in views)
    return HealthFinding(severity=severity, kind=kind, subjects=names, what=what, do=do)


# ------------------------------------------------------------------------------ lag and damage


def copies_findings(
    metadata: MetadataClient, storage: Storage, sight: Sight, run: OperationRun
) -> tuple[list[HealthFinding], dict[str, int | None]]:
    """Findings about partitions that look lagging or damaged. A partition that cannot be examined is a failure.
    The figures are None if a leader was not listed.
    """
    behind, odd = [], []
    for seen in sight.partitions:
        others = {broker: one for broker, one in seen.replicas.items() if broker != seen.view.leader}
        leader = seen.leader
        if leader is None:
            if seen.view.leader in seen.replicas:
                odd.append(seen)
            continue
        if any(not isinstance(other, Listing) or _contradict(leader, other) for other in others.values()):
            odd.append(seen)
        if any(isinstance(other, Listing) and known_end(other) < known_end(leader) for other in others.values()):
            behind.append(seen)
    lagging, figures = _lagging(storage, sight, behind, run)
    if any(seen.leader is None for seen in sight.partitions):
        figures = dict.fromkeys(figures)
    return [*lagging, *_damaged(metadata, storage, sight, odd, run)], figures


def known_end(listing: Listing) -> int:
    """An offset that the log in the folder certainly reaches, judging by file names. Two folders with the same
    files have the same offset.
    """
    ends = (file.name.least_end for file in listing.data)
    return max(ends, default=listing.local_start)


def _contradict(leader: Listing, other: Listing) -> bool:
    """Whether two folders have different files under the same name, or one folder lacks a file that it should
    have."""
    sizes = {file.name: file.object.size_bytes for file in leader.data}
    unequal = any(sizes.get(file.name, file.object.size_bytes) != file.object.size_bytes for file in other.data)
    return unequal or _lacks(leader, other) or _lacks(other, leader)


def _lacks(listing: Listing, whole: Listing) -> bool:
    """Whether a folder lacks, in the middle of its own files, a file of the other folder."""
    held = {file.name for file in listing.data}
    end = known_end(listing)
    merged = sorted((n.base_offset, n.next_offset or 0) for n in held if n.merged)
    return any(
        file.name not in held
        and listing.local_start <= file.name.base_offset
        and file.name.least_end <= end
        and not _is_covered(file.name, merged, held)
        for file in whole.data
    )


def _is_covered(name: DataName, merged: list[tuple[int, int]], held: Collection[DataName]) -> bool:
    """Whether a merged segment covers the file, or, if the file is a merged segment itself, whether another file
    begins at its base offset; that file may be one of the appends that were merged.
    """
    at = bisect_right(merged, (name.base_offset, 2**63)) - 1
    if at >= 0 and any(end > name.base_offset for _, end in merged[: at + 1]):
        return True
    return name.merged and any(one.base_offset == name.base_offset for one in held)


def _lagging(
    storage: Storage, sight: Sight, behind: list[SeenPartition], run: OperationRun
) -> tuple[list[HealthFinding], dict[str, int | None]]:
    works = [DescribeWork(storage.replicas(seen.view)) for seen in behind]
    late: list[PartitionView] = []
    records = size_bytes = most = 0
    oldest: list[int] = []
    for work, looks in run.done(storage.threads.run(list_replicas, works)):
        view = work.replicas.view
        lags = [
            _lag(look.found, leader)
            for leader, look in _beside_leader(view, looks)
            if sight.usable(look.broker_id) and look.broker_id not in view.joining
        ]
        since = [since_ms for _, _, since_ms in lags if since_ms is not None]
        records += sum(count for count, _, _ in lags)
        size_bytes += sum(lacking for _, lacking, _ in lags)
        most = max([most, *(count for count, _, _ in lags)])
        oldest += since
        if since and sight.now_ms - min(since) > sight.config.health_replication_max_lag_ms:
            late.append(view)
    figures: dict[str, int | None] = {
        "MaxLag": most,
        "replication-lag-records": records,
        "replication-lag-bytes": size_bytes,
        "replication-lag-ms": max(0, sight.now_ms - min(oldest, default=sight.now_ms)),
    }
    if not late:
        return [], figures
    found = _of_views(
        Severity.ERROR,
        "MaxLag",
        late,
        f"their followers lack {records:,} records ({size_bytes:,} bytes) of their leaders, some for longer than "
        "health.replication.max.lag.ms; a lost disk would lose these records",
        sight.commands("replicate", topics={view.topic for view in late}),
    )
    return [replace(found, since_ms=min(oldest))], figures


def _beside_leader(
    view: PartitionView, looks: Iterable[ListedReplica]
) -> Iterator[tuple[ListedLog, ListedReplica]]:
    """The readable followers, each with the leader's log."""
    listed = {look.broker_id: look for look in looks if isinstance(look.found, ListedLog)}
    leader = None if view.leader is None else listed.pop(view.leader, None)
    if leader is not None and isinstance(leader.found, ListedLog):
        for look in listed.values():
            yield leader.found, look


def _lag(found: object, leader: ListedLog) -> tuple[int, int, int | None]:
    """Return the number of records and bytes that a follower lacks, and the time when the first of these records
    was stored. None if the follower lacks no record.
    """
    assert isinstance(found, ListedLog)
    files = [file for file in leader.files if file.end > found.log_end]
    since_ms = min((file.modified_ms for file in files), default=None)
    return max(0, leader.log_end - found.log_end), sum(file.size_bytes for file in files), since_ms


def _damaged(
    metadata: MetadataClient, storage: Storage, sight: Sight, odd: list[SeenPartition], run: OperationRun
) -> Iterator[HealthFinding]:
    """Find damage in suspicious partitions, judging by names, sizes and footers. Also report the damage that the
    last full read of the bytes found, until a later check finds it repaired.
    """
    keys = {seen.view.key for seen in odd}
    topics = [sight.image.topics[topic_id] for topic_id in sorted({key.topic_id for key in keys})]
    audits = audit(metadata, storage, sight.image, topics, run.aside(), deep=False, only=keys) if keys else []
    lines_of: Mapping[str, list[str]] = {}
    for each in audits:
        if wrong := failures_of([each]):
            lines_of = {**lines_of, str(each.replicas): [*map(str, wrong)]}
    if lines_of:
        first, *more = (line for lines in lines_of.values() for line in lines)
        yield HealthFinding(
            severity=Severity.ERROR,
            kind=DAMAGED,
            subjects=tuple(lines_of),
            what=f"copies are damaged or incomplete: {first}" + (f" (and {len(more)} more)" if more else ""),
            do=sight.commands("heal", topics={seen.view.topic for seen in odd if str(seen) in lines_of}),
        )
    known = sight.times.damaged
    more_of = [one.view for one in sight.partitions if one.view.key in known and str(one) not in lines_of]
    for because in (frozenset[Cause](), frozenset[Cause]({REMOTE_TIER})):
        views = [view for view in more_of if _damage_of(known[view.key]) == because]
        if views:
            what = "The command repairs all damage for which a good copy exists; otherwise restore a copy first"
            heal = sight.commands("heal", topics={view.topic for view in views})
            found = _remembered([*map(str, views)], [known[view.key] for view in views], what, heal)
            yield replace(found, because=because)
    if METADATA_LOG in known:
        what = (
            "A new snapshot (stratalog quorum snapshot) replaces damaged snapshots. Wipe, bootstrap and replace a "
            "voter with damaged records (stratalog quorum replace-voter). Afterwards, run the command below to "
            "check the result"
        )
        verify = sight.commands("verify", "--deep", topics=[METADATA_TOPIC])
        yield _remembered([METADATA_TOPIC], [known[METADATA_LOG]], what, verify)


def _damage_of(trouble: Trouble) -> frozenset[Cause]:
    """Return the cause of damage: the remote tier, if no other place has damage."""
    in_remote = not trouble.unlisted and all(REMOTE_TIER in one.item for one in trouble.listed)
    return frozenset({REMOTE_TIER}) if in_remote else frozenset()


def _remembered(subjects: Sequence[str], troubles: Sequence[Trouble], what: str, do: str) -> HealthFinding:
    """Damage that an earlier check found, and that no later check has found repaired."""
    first, more = troubles[0].listed[0], sum(trouble.failures for trouble in troubles) - 1
    message = f"{first.item}: {first.code}: {first.message}" + (f" (and {more:,} more)" if more else "")
    return HealthFinding(
        severity=Severity.ERROR,
        kind=DAMAGED,
        subjects=tuple(subjects),
        what=f"copies were damaged when they were last read: {message}. {what}",
        do=do,
        since_ms=min(trouble.since_ms for trouble in troubles),
    )


def erasure_findings(sight: Sight) -> Iterator[HealthFinding]:
    """Findings about topics with an unfinished erasure, whose offsets are still in the metadata."""
    views: dict[str, list[PartitionView]] = {}
    for seen in sight.partitions:
        if any(one.offsets for one in seen.view.erasures):
            views.setdefault(seen.view.topic, []).append(seen.view)
    for topic, of_topic in sorted(views.items()):
        what = (
            "an erasure is not complete: replaced files, objects of the remote tier, or unreachable replicas "
            "still have erased records"
        )
        do = sight.commands("erase", topic)
        yield _of_views(Severity.WARNING, "unfinished-erasure", of_topic, what, do)


def lost_findings(storage: Storage, sight: Sight) -> Iterator[HealthFinding]:
    """Findings about lost logs, judging by the names in the folders. Lists a folder, and reads the remote log,
    only if a log seems lost.
    """
    suspicious = [
        seen
        for seen in sight.partitions
        if seen.leader is not None and known_end(seen.leader) < seen.view.written_to and not seen.leader.data
    ]

    def look(seen: SeenPartition) -> None:
        replicas = storage.replicas(seen.view)
        check_not_lost(replicas, replicas.leader.log(fresh=True))

    for outcome in storage.threads.run(look, suspicious):
        match outcome:
            case Failed(seen, LogLostError() as error):
                others = [seen.replicas.get(broker) for broker in seen.view.isr]
                held = any(isinstance(other, Listing) and other.data for other in others)
                topic = seen.view.topic
                held = held or not may_begin_again(seen.view)
                lost = sight.commands("recover", topic, "--keep", "brokers", "--dry-run")
                yield HealthFinding(
                    severity=Severity.ERROR,
                    kind="lost-log",
                    subjects=(str(seen),),
                    what=str(error),
                    do=sight.commands("replicate", topics=[topic]) if held else lost,
                )

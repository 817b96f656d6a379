"""Findings about consumer groups and transactions, from internal partitions with records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.health.finding import HealthFinding, Severity
from stratalog.engine.health.sight import SeenPartition, Sight
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.records.groups import LagRow, lag_rows, list_leaders, named
from stratalog.engine.records.state_log import look_at_state
from stratalog.engine.state.consumer_offsets import GroupState
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from stratalog.engine.state.keyed import OFFSETS, TRANSACTIONS, KeyedMachine, StateFormat
from stratalog.engine.state.transaction_state import ENDING, State, Transaction
from stratalog.engine.upkeep.memory.trouble import DAMAGE
from stratalog.partitions.amounts import span_text
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.listing import Listing
from stratalog.partitions.runner import Done, Failed

_PUT_BACK = ". The command repairs all damage for which a good copy exists; otherwise restore a copy first"
M = TypeVar("M", bound=KeyedMachine[Any])


def _used(sight: Sight, topic: str) -> list[PartitionView]:
    """Return the partitions of an internal topic that have records, or may have records because no folder could be
    listed.
    """
    return [
        seen.view
        for seen in sight.partitions
        if seen.view.topic == topic
        and (not (listed := _listed(sight, seen)) or any(one.data or one.checkpoints for one in listed))
    ]


def _listed(sight: Sight, seen: SeenPartition) -> list[Listing]:
    """Return the folders of the ISR's members that answer. If the leader answers, return only its folder."""
    found = {b: one for b, one in seen.replicas.items() if sight.usable(b) and isinstance(one, Listing)}
    leader = None if seen.view.leader is None else found.get(seen.view.leader)
    return [leader] if leader is not None else [one for b, one in found.items() if b in seen.view.isr]


def _states(
    storage: Storage, clock: Clock, memory: Memory, sight: Sight, topic: str, form: StateFormat[M, Any], what: str
) -> tuple[list[M], list[HealthFinding]]:
    """Return the states of a topic's partitions, and one finding for all partitions that cannot be read."""
    read: list[M] = []
    unread: list[tuple[PartitionView, StratalogError]] = []
    for outcome in storage.threads.run(
        lambda view: look_at_state(storage, clock, memory, view, form), _used(sight, topic)
    ):
        match outcome:
            case Done(_, found):
                read.append(found.state)
            case Failed(view, error):
                unread.append((view, error))
    if not unread:
        return read, []
    (_, first), *_ = unread
    damaged, heal = first.code in DAMAGE, sight.commands("heal", topics=[topic])
    causes = [sight.keeping_offline(view) for view, _ in unread]
    return read, [
        HealthFinding(
            severity=Severity.ERROR,
            kind="state-unread",
            subjects=tuple(str(view) for view, _ in unread),
            what=f"{what} cannot be read from any member of the ISR ({first.code}: {first})"
            + (_PUT_BACK if damaged else ""),
            do=heal if damaged else sight.commands("describe", topics=[topic]),
            because=frozenset().union(*causes) if all(causes) else frozenset(),
        )
    ]


@dataclass(frozen=True, slots=True)
class GroupsFound:
    findings: list[HealthFinding]
    lags: Mapping[tuple[str, str], int]
    """The known lags by group and topic. A topic with a commit beyond a log end has no lag here."""
    figures: Mapping[str, int | None]
    groups: Mapping[str, GroupState]
    """The groups that could be read, by name."""


def group_findings(storage: Storage, clock: Clock, memory: Memory, sight: Sight, run: OperationRun) -> GroupsFound:
    """Findings about groups that lag by more than ``health.consumer.max.lag.records``, or for longer than
    ``health.consumer.max.lag.ms``, or have a commit beyond a log end. High watermarks come from file names. A log
    is listed only if a group lags by more than that number of records, or has a commit beyond a high watermark.
    """
    states, unread = _states(storage, clock, memory, sight, OFFSETS_TOPIC, OFFSETS, "the offsets of groups")
    groups = {name: one for state in states for name, one in state.groups.items()}
    logs = {
        (seen.view.topic, seen.view.partition): listed
        for seen in sight.partitions
        if (listed := _listed(sight, seen))
    }
    marks = {
        key: max((m.offset for one in listed for m in one.watermarks), default=0) for key, listed in logs.items()
    }
    lags = {name: _lags(sight, group, marks) for name, group in groups.items()}
    since = {name: _since(sight, group, marks, logs) for name, group in groups.items()}
    limit = sight.config.health_consumer_max_lag_records
    over = {name for name, found in lags.items() if 0 <= limit < max(known(found), default=0)}
    ahead = {
        name
        for name, group in groups.items()
        if any(key in marks and record.offset > marks[key] for key, record in named(sight.image, group))
    }
    rows: dict[str, list[LagRow]] = {}
    if over or ahead:  # their logs are listed after the commits were read
        suspects = {name: groups[name] for name in sorted(over | ahead)}
        leaders, unlisted = list_leaders(storage, memory, sight.image, suspects.values())
        run.failures += unlisted
        rows = {name: lag_rows(sight.image, group, leaders) for name, group in suspects.items()}
    many = list(_too_many(sight, {name: found for name, found in rows.items() if name in over}))
    beyond: dict[tuple[str, str], list[LagRow]] = {}
    for name in sorted(ahead):
        for row in rows[name]:
            if row.beyond_end is not None:
                beyond.setdefault((name, row.topic), []).append(row)
    reported = {one.subject for one in many}
    every = {(name, topic): lag for name, found in lags.items() for topic, lag in found.items()}
    unknown = unread or None in every.values()
    known_lags = {key: lag for key, lag in every.items() if lag is not None and key not in beyond}
    oldest_ms = min((at_ms for found in since.values() for at_ms in found.values()), default=sight.now_ms)
    figures = {
        "records-lag-max": None if unknown else max(known(every), default=0),
        "records-lag-max-ms": None if unknown else max(0, sight.now_ms - oldest_ms),
    }
    old = [one for one in _too_old(sight, since) if one.subject not in reported]
    return GroupsFound([*unread, *many, *old, *_of_beyond_end(sight, beyond)], known_lags, figures, groups)


def _too_many(sight: Sight, rows: Mapping[str, Iterable[LagRow]]) -> Iterator[HealthFinding]:
    """Find the groups with more unprocessed records than the limit."""
    limit = sight.config.health_consumer_max_lag_records
    for name, found in rows.items():
        by_topic: dict[str, int] = {}
        for row in found:
            by_topic[row.topic] = by_topic.get(row.topic, 0) + (row.lag or 0)
        late = [f"{lag:,} records of {topic}" for topic, lag in sorted(by_topic.items()) if lag > limit]
        if late:
            what = (
                f"the group has not processed {', '.join(late)}; the limit is {limit:,} "
                "(health.consumer.max.lag.records). Start its consumers, or add consumers"
            )
            yield _of_group(sight, Severity.ERROR, name, what)


def _of_beyond_end(sight: Sight, found: Mapping[tuple[str, str], Sequence[LagRow]]) -> Iterator[HealthFinding]:
    for name in dict.fromkeys(group for group, _ in found):
        rows = [row for (group, _), those in found.items() if group == name for row in those]
        places = ", ".join(f"{row.topic}-{row.partition} ({row.committed} of {row.log_end})" for row in rows[:3])
        yield HealthFinding(
            severity=Severity.WARNING,
            kind="committed-beyond-log-end",
            subjects=(name,),
            what=f"the group's committed offset is beyond the log end in {len(rows)} partitions: {places}. A "
            "consumer that continues there gets OFFSET_OUT_OF_RANGE, or skips new records below that "
            "offset. Stop the group's consumers, and move its offsets (groups reset-offsets)",
            do=sight.commands("groups", "describe", name),
        )


def _too_old(sight: Sight, since: Mapping[str, Mapping[str, int]]) -> Iterator[HealthFinding]:
    """Find the groups that have not processed records for longer than the limit. The finding is only a warning,
    because the group of a daily job may lag and be healthy.
    """
    limit_ms = sight.config.health_consumer_max_lag_ms
    for name, found in sorted(since.items()):
        late = {topic: at_ms for topic, at_ms in sorted(found.items()) if 0 <= limit_ms < sight.now_ms - at_ms}
        if late:
            what = (
                f"the group has not processed records of {', '.join(late)} that are older than "
                f"{span_text(limit_ms)} (health.consumer.max.lag.ms). Start its consumers. If the group runs "
                "rarely, raise the limit; if the group is no longer needed, delete it (groups delete)"
            )
            found_one = _of_group(sight, Severity.WARNING, name, what)
            yield replace(found_one, since_ms=min(late.values()))


def _of_group(sight: Sight, severity: Severity, name: str, what: str) -> HealthFinding:
    do = sight.commands("groups", "describe", name)
    return HealthFinding(severity=severity, kind="records-lag-max", subjects=(name,), what=what, do=do)


def _since(
    sight: Sight,
    group: GroupState,
    marks: Mapping[tuple[str, int], int],
    logs: Mapping[tuple[str, int], Sequence[Listing]],
) -> dict[str, int]:
    """Return, by topic, the latest possible time at which the oldest unprocessed record was stored. Merging
    rewrites files, but a file's records are still older than the records of later files.
    """
    found: dict[str, int] = {}
    for (topic, partition), record in named(sight.image, group):
        key = topic, partition
        if marks.get(key, 0) <= record.offset:
            continue
        files = logs[key][0].data
        first = max((f.name.base_offset for f in files if f.name.base_offset <= record.offset), default=0)
        times = [f.object.modified_ms for f in files if f.name.base_offset >= first]
        if times:
            found[topic] = min(found.get(topic, sight.now_ms), *times)
    return found


def known(lags: Mapping[Any, int | None]) -> list[int]:
    return [lag for lag in lags.values() if lag is not None]


def _lags(sight: Sight, group: GroupState, marks: Mapping[tuple[str, int], int]) -> dict[str, int | None]:
    """Return the number of records after the group's offsets, by topic. The number is None for a topic if no ISR
    member of one of its partitions answers.
    """
    found: dict[str, int | None] = {}
    for (topic, partition), record in named(sight.image, group):
        before, mark = found.get(topic, 0), marks.get((topic, partition))
        found[topic] = None if before is None or mark is None else before + max(0, mark - record.offset)
    return found


def transaction_findings(
    storage: Storage, clock: Clock, memory: Memory, sight: Sight
) -> tuple[list[HealthFinding], dict[str, int | None]]:
    """Findings about transactions that block readers of committed records, because they have timed out, or were
    decided long ago but have not ended.
    """
    states, unread = _states(
        storage, clock, memory, sight, TRANSACTIONS_TOPIC, TRANSACTIONS, "the state of transactions"
    )
    late = [one for state in states for one in _late(state.transactions.values(), sight.now_ms)]
    partitions = {key for one, _ in late for key in one.partitions}
    findings = [
        HealthFinding(
            severity=Severity.ERROR if sight.now_ms - since_ms > sight.max_delay_ms else Severity.WARNING,
            kind="PartitionsWithLateTransactionsCount",
            subjects=(one.transactional_id,),
            what="its transaction was abandoned, and read_committed readers are blocked until the transaction "
            "ends",
            do=sight.commands("transactions", "finish"),
            since_ms=since_ms,
        )
        for one, since_ms in late
    ]
    return [*unread, *findings], {"PartitionsWithLateTransactionsCount": None if unread else len(partitions)}


def _late(found: Iterable[Transaction], now_ms: int) -> Iterator[tuple[Transaction, int]]:
    """Return the overdue transactions, each with the time since which it has been overdue."""
    for one in found:
        if one.state is State.ONGOING:
            since_ms = (one.start_ms or 0) + one.timeout_ms
        elif one.state in (State.PREPARE_EPOCH_FENCE, *ENDING):
            since_ms = one.update_ms + one.timeout_ms
        else:
            continue
        if now_ms > since_ms:
            yield one, since_ms

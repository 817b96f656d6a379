"""Elections of preferred leaders, of leaders chosen by hand, and unclean elections if the ISR is lost (protocol
section 4).

A clean election is only a commit, because the new leader is in the ISR and has all acknowledged records. Before an
unclean election, the replicas are listed: the replica with the most records is selected, the loss is reported, and
the replica is prepared to lead (``candidates``). Every election begins a new leader epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from stratalog.engine.brokers.probe import probe_first
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics, topic_config_of
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.image import ClusterImage, Incarnation, PartitionView
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.taking_writes import all_that_take_no_files
from stratalog.engine.replication.remote_end import RemoteTail
from stratalog.engine.upkeep.replication.candidates import (
    Candidate,
    Candidates,
    CandidateWork,
    list_candidates,
    preferred_leaders,
    prepare,
)
from stratalog.engine.upkeep.tiering.remote_logs import load_remotes
from stratalog.partitions.errors import InvalidCallError, PreferredLeaderNotAvailableError, StratalogError

_WAITS = (
    "without the remote log, the offset at which a new leader must start is unknown: restore the remote tier, "
    "or a broker of the ISR"
)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The chosen leader of a partition, and the records that are lost."""

    view: PartitionView
    leader: int
    candidate: Candidate | None = None
    lost_at_least: int | None = None
    """The number of acknowledged records that no reachable replica has, computed from the greatest high watermark
    of the reachable replicas. None if no loss is known. (The last members of the ISR may have had a greater high
    watermark.)
    """

    def __str__(self) -> str:
        return str(self.view)

    @property
    def election(self) -> Election:
        """The request of the election. An unclean election is valid only for the view under which the replicas
        were listed.
        """
        view, unclean = self.view, self.candidate is not None
        epoch = view.partition_epoch if unclean else None
        return Election(view.topic_id, view.partition, self.leader, unclean, partition_epoch=epoch)


class ElectRow(PartitionRow, frozen=True, kw_only=True):
    """A partition that gets another leader."""

    leader_before: int | None
    leader: int | None
    leader_epoch: int
    lost_records_at_least: int | msgspec.UnsetType | None
    """The least loss of an unclean election."""


def elect(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topics: Sequence[str] | None = None,
    partitions: Sequence[int] | None = None,
    *,
    unclean: bool = False,
    leader: int | None = None,
    dry_run: bool = False,
) -> Report:
    """Elect the preferred replica, or ``leader``, for each partition that another replica leads. With ``unclean``,
    only partitions without a leader get one: the replica with the most records becomes the leader, even if
    ``unclean.leader.election.enable`` is false.

    Each broker is tested by creating a file in its root. A broker whose root accepts no files can only be elected
    uncleanly.

    With ``leader.election.short.local.log.last.enable`` the preferred leader is the first replica without a short
    local log (``candidates``).

    ``partitions`` applies to every named topic. Without it, ``leader`` applies to all partitions that have a
    replica on that broker.

    Raises: UnknownTopicOrPartitionError, UnknownBrokerError, InvalidCallError; a partition without a candidate is
        a failure in the report.
    """
    with execution.run("elect", dry_run=dry_run) as run:
        image = metadata.image()
        _views(image, topics, partitions, leader)  # an invalid call must change nothing
        image = probe_first(metadata, storage, run, image if dry_run else None)
        views = _views(image, topics, partitions, leader)
        if unclean:
            views = [view for view in views if view.leader is None]
            chosen = _choose_uncleanly(storage, image, views, leader, run)
        else:
            by_storage = preferred_leaders(storage, image, views, run) if leader is None else {}
            wanted = [
                _Chosen(view, by_storage.get(view.key, view.replicas[0]) if leader is None else leader)
                for view in views
            ]
            chosen = [one for one in wanted if one.view.leader != one.leader]
            if not dry_run:
                chosen = _that_take_files(storage, chosen, run)
            elif chosen:
                run.notes.append("a dry run creates no file, so it does not test whether the brokers accept files")
        elected = _commit(metadata, image, chosen, leader is None and not unclean, run)
        after = None
        if elected and not dry_run:
            with run.still_reporting():
                after = metadata.image()
        run.add(_row(one, after, unclean) for one in elected)
        run.notes += [_note(one, image) for one in elected if one.candidate is not None]
    run.totals["elected"] = len(run.rows)
    if unclean:
        known = [one.lost_at_least for one in elected if one.lost_at_least is not None]
        run.totals["lost_records_at_least"] = sum(known) if known or not elected else None
    return run.report()


def elect_uncleanly_where_allowed(
    metadata: MetadataClient, storage: Storage, execution: Execution, image: ClusterImage
) -> tuple[ClusterImage, tuple[str, ...]]:
    """Elect leaders uncleanly, at the start of a run, for partitions without a leader whose topics allow this
    (``unclean.leader.election.enable``). Returns the image after the elections, and a note for each attempt. A
    partition is skipped if the storage of the ISR's last member was moved or restored from a copy, because only an
    operator knows whether the copy is complete.
    """
    views: list[PartitionView] = []
    notes: list[str] = []
    for topic in image.topics.values():
        leaderless = [partition for partition in topic.partitions if partition.leader is None]
        if not leaderless or not topic_config_of(image, topic).unclean_leader_election_enable:
            continue
        for partition in leaderless:
            view = image.view(topic.topic_id, partition.partition)
            copies = [lost.broker_id for lost in partition.lost if _is_copied(image, lost)]
            if copies:
                notes.append(
                    f"{view}: no automatic unclean election: broker {copies[0]} was the last member of the ISR, "
                    "and its root was moved or restored from a copy. If the copy is complete, bootstrap the "
                    "broker with --trust-copy; otherwise elect --unclean"
                )
            else:
                views.append(view)
    if not views:
        return image, tuple(notes)
    with execution.run("elect") as tried:
        chosen = _choose_uncleanly(storage, image, views, None, tried)
        elected = _commit(metadata, image, chosen, False, tried)
    notes += [_note(one, image) for one in elected]
    notes += [f"{failure.item}: no unclean election: {failure.message}" for failure in tried.failures]
    if elected:
        try:
            image = metadata.image()
        except StratalogError as error:  # the notes about lost records must not be lost
            notes.append(f"the metadata cannot be read after an unclean election: {error.code}: {error}")
    return image, tuple(notes)


def _is_copied(image: ClusterImage, lost: Incarnation) -> bool:
    broker = image.brokers.get(lost.broker_id)
    return broker is not None and broker.directory_id == lost.directory_id


def _views(
    image: ClusterImage,
    topics: Sequence[str] | None,
    partitions: Sequence[int] | None,
    leader: int | None,
) -> list[PartitionView]:
    """The selected partitions. Raises: see ``elect``."""
    if partitions is not None and topics is None:
        raise InvalidCallError(f"name the topic of partitions {list(partitions)}")
    chosen = chosen_topics(image, topics)
    if partitions is not None:
        return [image.view(topic.topic_id, p) for topic in chosen for p in dict.fromkeys(partitions)]
    views = [view for topic in chosen for view in image.views(topic.name)]
    if leader is None:
        return views
    image.broker(leader)
    held = [view for view in views if leader in view.replicas]
    if not held:
        of = "any topic" if topics is None else f"topic {', '.join(topics)}"
        raise InvalidCallError(f"broker {leader} has no replica of {of}, so this broker cannot be the leader")
    return held


def _that_take_files(storage: Storage, chosen: Sequence[_Chosen], run: OperationRun) -> list[_Chosen]:
    """The elections whose new leader accepts writes. All other elections become failures, because their leaders
    would resign at the next append.
    """
    asked = {
        one.leader: one.view.brokers[one.leader]
        for one in chosen
        if one.leader in one.view.isr and one.leader in storage.stores and not one.view.brokers[one.leader].fenced
    }
    refusing = all_that_take_no_files(storage, asked)
    run.notes += [f"broker {broker} is not elected: {error}" for broker, error in refusing.items()]
    for one in chosen:
        if one.leader in refusing:
            run.fail(
                one.view,
                PreferredLeaderNotAvailableError(f"broker {one.leader} refuses writes: {refusing[one.leader]}"),
            )
    return [one for one in chosen if one.leader not in refusing]


def _choose_uncleanly(
    storage: Storage, image: ClusterImage, views: Sequence[PartitionView], leader: int | None, run: OperationRun
) -> list[_Chosen]:
    """List the replicas of all partitions in parallel, choose leaders, and prepare them (not in a dry run)."""

    def choose(listed: tuple[CandidateWork, Candidates]) -> _Chosen:
        work, found = listed
        config = topic_config_of(image, image.topics[work.replicas.view.topic_id])
        short_local_logs_last = config.leader_election_short_local_log_last_enable
        best = found.best(work.replicas, leader, short_local_logs_last=short_local_logs_last)
        if not run.dry_run:
            prepare(work.replicas, best)
        lost = found.high_watermark - best.log_end
        return _Chosen(work.replicas.view, best.broker_id, best, lost if lost > 0 else None)

    works = _candidate_works(storage, image, views, run)
    listed = list(run.done(run.tasks.run(list_candidates, works)))
    return [one for _, one in run.done(storage.threads.run(choose, listed), lambda item: item[0])]


def _candidate_works(
    storage: Storage, image: ClusterImage, views: Sequence[PartitionView], run: OperationRun
) -> list[CandidateWork]:
    """The work for each partition. A topic whose remote log cannot be read is a failure, because a leader that
    began below the end of the remote log would use offsets twice.
    """
    topics = {view.topic_id: image.topics[view.topic_id] for view in views}
    loading = run.aside()
    remotes = load_remotes(storage, image, topics.values(), loading)
    run.failures += [replace(failure, message=f"{failure.message}; {_WAITS}") for failure in loading.failures]
    works: list[CandidateWork] = []
    for view in views:
        topic = topics[view.topic_id]
        tail = None
        config = topic_config_of(image, topic)
        if config.remote_storage_enable:
            if view.topic_id not in remotes:
                continue
            segments = remotes[view.topic_id].of_partition(view.partition)
            store = storage.remote_store("the topic is tiered")
            tail = RemoteTail(store, topic.folder, segments[-1] if segments else None)
        works.append(CandidateWork(storage.replicas(view), tail, config.snapshots))
    return works


def _commit(
    metadata: MetadataClient, image: ClusterImage, chosen: Sequence[_Chosen], preferred: bool, run: OperationRun
) -> list[_Chosen]:
    """Commit all elections in one commit. Returns the elections that took place; in a dry run, the elections that
    would take place according to ``image``.
    """
    elections = [one.election for one in chosen]
    if preferred:  # do not name the preferred leader, because a preferred election has its own error
        elections = [
            Election(one.view.topic_id, one.view.partition) if one.leader == one.view.replicas[0] else one.election
            for one in chosen
        ]
    by_key = {one.view.key: one for one in chosen}
    command = ElectLeaders(tuple(elections))
    if not run.dry_run:
        return [*run.commit(metadata, command, by_key, _hint).values()]
    decided = command.decide(image)
    if decided.records:
        metadata.check_may_commit()
    return [*run.refuse(decided.answer, by_key, _hint).values()]


def _hint(one: _Chosen) -> str:
    if one.view.leader is None and one.candidate is None:
        return (
            "; the partition has no leader: bring back a broker of its ISR, or run elect --unclean, which loses "
            "the records that only the ISR had"
        )
    return ""


def _row(one: _Chosen, after: ClusterImage | None, unclean: bool) -> ElectRow:
    """The row of an election; without the metadata ``after`` it, as elected."""
    view = one.view
    leader: int | None = one.leader
    epoch = view.leader_epoch + 1
    if after is not None and view.topic_id in after.topics:
        now = after.partition(view.topic_id, view.partition)
        leader, epoch = now.leader, now.leader_epoch
    return ElectRow(
        topic=view.topic,
        partition=view.partition,
        leader_before=view.leader,
        leader=leader,
        leader_epoch=epoch,
        lost_records_at_least=one.lost_at_least if unclean else msgspec.UNSET,
    )


def _note(one: _Chosen, image: ClusterImage) -> str:
    """A note about the known loss of an unclean election."""
    present = image.partition(one.view.topic_id, one.view.partition)
    members = sorted({*present.isr, *(lost.broker_id for lost in present.lost)})
    lost = [] if one.lost_at_least is None else [f"at least {one.lost_at_least} acknowledged records"]
    if members:
        lost.append(
            f"all records held only by broker(s) {', '.join(map(str, members))}, the last members of the ISR"
        )
    of_it = "" if one.lost_at_least is not None else " (the number of lost records is unknown)"
    begin = ""
    if one.candidate is not None and one.candidate.start_over is not None:
        begin = f"The local log of broker {one.leader} restarts at offset {one.candidate.start_over[0]}. "
    return (
        f"{one.view}: unclean election of broker {one.leader} loses "
        f"{' and '.join(lost) or 'the records that no replica has'}{of_it}. {begin}If the storage of these "
        "records comes back, verify --discarded lists the truncated records, and recover exports them"
    )

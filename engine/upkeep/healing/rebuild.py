"""Rebuilds damaged and missing objects of the remote tier from replicas that still have their records.

    1. plan the verified files for each segment (``rebuild_plan``)
    2. for each segment, copy or write the object under a new name, and read back every byte
    3. one commit per topic, which changes no data: the table then lists the new objects instead of the lost
       objects. If files extend beyond the end of the remote log, an earlier commit adds their remaining records

A crash leaves only objects that no table lists. Like all objects removed from the table, damaged objects are
deleted by ``retain`` and ``vacuum`` after the delay, so that running readers and time travel still find them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.healing.plan import HealRow
from stratalog.engine.upkeep.healing.rebuild_plan import RebuildPlan, RebuiltObject
from stratalog.engine.upkeep.tiering.iceberg import follow
from stratalog.engine.upkeep.tiering.state import present_of
from stratalog.engine.upkeep.verification.audit import Audited
from stratalog.partitions.errors import (
    CorruptionError,
    FencedLeaderEpochError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Link, Listing, ReplicaLog
from stratalog.partitions.producers import ProducerEntry, ProducerState, without_transactions
from stratalog.partitions.records import schema_of
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrites.merge import Run, with_outcomes
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.transactions import Fate, transactions_of
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.plan import expired_segments
from stratalog.tiering.rebuilder import Beside, rebuild, rebuild_from_records
from stratalog.tiering.remote_change import CommittedBatch, Rebuilt
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded


@dataclass(frozen=True, slots=True)
class RebuildJob:
    each: Audited
    plan: RebuildPlan

    def __str__(self) -> str:
        return f"{self.each.replicas} in the remote tier"

    def row(self, outcome: str) -> HealRow:
        return HealRow(
            topic=self.each.replicas.view.topic,
            partition=self.each.replicas.view.partition,
            damage=self.plan.what if self.plan.lost else "missing",
            start=self.plan.start,
            end=self.plan.end,
            source=self.plan.sources,
            outcome=outcome,
        )


@dataclass(frozen=True, slots=True)
class _Made:
    """The new objects of a job, which no table lists yet."""

    job: RebuildJob
    rebuilt: Rebuilt
    rest: tuple[Uploaded, ...]
    """The objects that an earlier commit adds; ``rebuilt`` then replaces them."""


def rebuild_remote(
    metadata: MetadataClient,
    storage: Storage,
    jobs: Sequence[RebuildJob],
    topics: Mapping[str, TopicImage],
    run: OperationRun,
) -> list[HealRow]:
    """Run the plans; ``topics`` is keyed by topic id. Each failure gets a note."""
    made: dict[str, list[_Made]] = {}
    outcomes = storage.threads.run(lambda job: _rebuild(metadata, storage, job, topics), jobs)
    for outcome in run.watched(outcomes, len(jobs), "remote segments"):
        match outcome:
            case Done(job, objects):
                made.setdefault(job.each.replicas.view.topic_id, []).append(objects)
            case Failed(job, error):
                run.notes.append(f"{job}: {job.plan.what} could not be rebuilt: {error.code}: {error}")
    done: set[RebuildPlan] = set()
    for topic_id, made_here in made.items():
        try:
            _commit(metadata, storage, topics[topic_id], made_here)
        except StratalogError as error:
            run.notes.append(
                f"{topics[topic_id].name}: the rebuilt objects are not committed: {error.code}: {error}"
            )
        else:
            done |= {one.job.plan for one in made_here}
            topic = topics[topic_id]
            follow(metadata, storage, topic, topic_config_of(metadata.image(), topic), run)
    return [job.row("repaired" if job.plan in done else "left alone") for job in jobs]


def _commit(metadata: MetadataClient, storage: Storage, topic: TopicImage, made: Sequence[_Made]) -> None:
    """Step 3."""
    _add(metadata, storage, topic, [(one.job.each, one.rest) for one in made if one.rest])
    if replaced := [one.rebuilt for one in made if one.job.plan.lost]:
        held = _histories(metadata, topic, [one.job.each for one in made])
        _check_current(storage.remote_table(topic).replace(replaced, held))
    _add(metadata, storage, topic, [(one.job.each, one.rebuilt.uploads) for one in made if not one.job.plan.lost])


def _add(
    metadata: MetadataClient,
    storage: Storage,
    topic: TopicImage,
    added: Sequence[tuple[Audited, tuple[Uploaded, ...]]],
) -> None:
    """Add objects for offsets that the table does not list. As in a tier run, the commit checks the leader."""
    if not added:
        return
    held = _histories(metadata, topic, [each for each, _ in added])
    passed = {each.replicas.view.partition: each.replicas.view.log_start_offset for each, _ in added}
    table = storage.remote_table(topic)
    expired = expired_segments(table.load(), passed)
    done = table.commit([one for _, uploads in added for one in uploads], expired, held)
    if done.fenced:
        raise FencedLeaderEpochError("the leader has changed; heal again")
    _check_current(done)


def _histories(metadata: MetadataClient, topic: TopicImage, parts: Iterable[Audited]) -> Histories:
    """The histories of the partitions, as the audit found them."""

    def now() -> dict[int, Present]:
        image = metadata.image()
        found = image.topics.get(topic.topic_id)
        return (
            {} if found is None else {part.partition: present_of(image, found, part) for part in found.partitions}
        )

    parts = [*parts]
    lineages = {each.replicas.view.partition: each.looked.lineage for each in parts if each.looked is not None}
    erasures = {each.replicas.view.partition: each.replicas.view.last_erasure for each in parts}
    return Histories(lineages, now, erasures)


def _check_current(done: CommittedBatch) -> None:
    """Raises: SourceChangedError if records were erased since the objects were rebuilt."""
    if done.stale:
        raise SourceChangedError(
            f"records of {done.stale[0].segment.path}, or of other segments of the partition, were "
            "erased or compacted after the object was rebuilt; heal again"
        )


def _rebuild(
    metadata: MetadataClient, storage: Storage, job: RebuildJob, topics: Mapping[str, TopicImage]
) -> _Made:
    """Step 2. Raises: see ``stratalog.tiering.rebuilder.rebuild``."""
    replicas, remote, plan = job.each.replicas, job.each.remote, job.plan
    assert remote is not None
    topic, log_start = topics[replicas.view.topic_id], replicas.view.log_start_offset
    if plan.from_table:
        return _Made(job, Rebuilt(plan.lost, (_rebuild_from_table(metadata, storage, job, topic),), log_start), ())
    config = topic_config_of(metadata.image(), topic)

    def bring(
        pieces: Iterable[RebuiltObject], lost: RemoteSegment | None, of_the_end: bool
    ) -> tuple[Uploaded, ...]:
        uploads: list[Uploaded] = []
        for piece in pieces:
            source = replicas.replica(piece.broker_id)
            run = _decided_run(source, piece)
            state = partial(_producers_at, source, replicas.leader, run.end) if of_the_end else dict
            compression = config.compression_type
            uploads.append(
                rebuild(source, run, lost, remote.store, remote.folder, compression=compression, state=state)
            )
        return tuple(uploads)

    if not plan.lost:
        parts = [part for piece in plan.pieces for part in _segments(piece, config.merging.segment_bytes)]
        return _Made(job, Rebuilt((), bring(parts, None, True), log_start), ())
    rest = bring(plan.rest, None, True)
    uploads = bring(plan.pieces, plan.lost[0], remote.segments[-1] in plan.lost)
    return _Made(job, Rebuilt((*plan.lost, *(one.segment for one in rest)), uploads, log_start), rest)


def _rebuild_from_table(
    metadata: MetadataClient, storage: Storage, job: RebuildJob, topic: TopicImage
) -> Uploaded:
    """Rebuild from the records in the table. Raises: CorruptionError if the leader's log cannot be read; see
    ``rebuild_from_records``.
    """
    replicas, looked, remote = job.each.replicas, job.each.looked, job.each.remote
    (lost,) = job.plan.lost
    if remote is None or looked is None or looked.leader_log is None:
        raise CorruptionError(f"{replicas}: its leader is damaged: run heal again once the leader is intact")
    producers: Mapping[str, ProducerEntry] = {}
    if lost == remote.segments[-1]:
        producers = replicas.leader.producers_at(looked.leader_log, lost.next_offset)
    table, schema = storage.remote_table(topic), schema_of(topic.key_schema, topic.value_schema)
    return rebuild_from_records(
        partial(table.records, lost, schema),
        schema,
        lost,
        Beside(topic.topic_id, looked.lineage, without_transactions(producers)),
        table.remote,
        table.folder,
        compression=topic_config_of(metadata.image(), topic).compression_type,
    )


def _producers_at(source: Replica, leader: Replica, offset: int) -> ProducerState:
    """The producer state at the offset. Raises: CorruptionError if no source has this state."""
    with suppress(CorruptionError):
        return source.producers_at(source.log(), offset)
    return leader.producers_at(leader.log(), offset)


def _segments(piece: RebuiltObject, segment_bytes: int) -> Iterator[RebuiltObject]:
    """The piece, split into parts of about the size of a segment."""
    links: list[Link] = []
    for number, link in enumerate(piece.links, 1):
        links.append(link)
        rest = piece.links[number:]
        size = sum(each.file.object.size_bytes for each in (*links, *rest[:1]))
        if not rest or size > segment_bytes:
            yield RebuiltObject(piece.broker_id, tuple(links), (*rest, *piece.behind))
            links = []


def _decided_run(source: Replica, piece: RebuiltObject) -> Run:
    """The run with the outcomes of its transactions. Raises: CorruptionError if the replica lacks the outcomes."""
    chain = (*piece.links, *piece.behind)
    transactions = transactions_of(_as_log(chain), source.footer)
    for link in piece.links:
        if transactions.fates.get(link.name) is Fate.OPEN:
            raise CorruptionError(
                f"{source}: {link.name} belongs to a transaction whose end the replica does not have"
            )
    return with_outcomes(Run(piece.links), transactions)


def _as_log(chain: tuple[Link, ...]) -> ReplicaLog:
    """One log of these files, which may no longer belong to their replica's log. (Tiered records are committed,
    and their transactions have ended.)
    """
    end = chain[-1].end
    return ReplicaLog(
        listing=Listing((), (), (), (), ()),
        lineage=Lineage(),
        chain=chain,
        local_start=chain[0].start,
        log_end=end,
        high_watermark=end,
        claimed_high_watermark=end,
        dead=(),
        hidden=(),
        stranded=(),
    )

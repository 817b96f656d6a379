"""Verify: every replica and the remote against each other.

    1. tasks, one a partition: list all replicas, check names, sizes, contiguity, footers, the remote table
       (``structure``, ``registers``, ``snapshots``, ``remote``)
    2. with ``deep``, tasks, one a group of files: every byte against its checksums (``content``)
    3. copies of one file must be equal (``findings``)
    4. the metadata log on its voters (``metadata``)

Nothing is changed. What is wrong is a failure of the report, with the replica, the file and the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from engine.context import Context
from engine.metadata.image import ClusterImage, PartitionView, TopicImage
from engine.operations.replicas.in_sync import PartitionKey, partition_key
from engine.operations.tiering.remote_logs import ask_remote
from engine.operations.verification.content import ReadWork, groups_of, read_files
from engine.operations.verification.findings import BadFile, Copy, Finding, odd_copies
from engine.operations.verification.metadata import verify_metadata
from engine.operations.verification.remote import RemotePart
from engine.operations.verification.structure import Looked, LookWork, look_at_partition
from engine.replication.site import Site
from engine.report import Failure, Report, Value
from engine.state.internal_topics import INTERNAL_TOPICS
from partitions.paths import METADATA_TOPIC
from partitions.runner import Done, Failed
from partitions.store import Store

_ROUNDS = 5
"""How often a partition is looked at whose view keeps changing."""


@dataclass(slots=True)
class Audited:
    """One partition, and everything that is wrong with it."""

    work: LookWork
    looked: Looked | None = None
    findings: list[Finding] = field(default_factory=list)
    good: list[Copy] = field(default_factory=list)
    """With ``deep``: the files of logs and remote of which every byte was read and found right, and which are
    as their copies are."""
    spare: list[Copy] = field(default_factory=list)
    """With ``deep``: the files of replicas that no log uses, of which every byte was read and found right."""

    @property
    def site(self) -> Site:
        """The partition, under the view of the audit."""
        return self.work.site

    def store(self, place: int | None) -> Store:
        """The store of a broker, or of the remote tier."""
        if place is not None:
            return self.site.replica(place).store
        assert self.work.remote is not None
        return self.work.remote.store


def verify(context: Context, topics: Sequence[str] | None = None, *, deep: bool = False) -> Report:
    """Verify the topics (when None all, and the metadata log, which is named as ``__cluster_metadata``): names,
    sizes, contiguity and footers; with ``deep`` also every byte. Of all topics, partitions of the engine's own
    ones that hold nothing have no row: most never do.

    Raises: UnknownTopicOrPartitionError; what keeps the metadata from being read.
    """
    failures: list[Failure] = []
    with_metadata = topics is None or METADATA_TOPIC in topics
    if topics is not None:
        topics = [name for name in topics if name != METADATA_TOPIC]
    with context.measured() as measure:
        image = context.metadata.image()
        audits = audit(context, image, context.topics(image, topics), failures, deep=deep)
        failures += failures_of(audits)
        looked = [_row(each) for each in audits if each.looked is not None]
        rows = [
            row
            for row in looked
            if topics is not None or row["topic"] not in INTERNAL_TOPICS or row["files"] or row["findings"]
        ]
        if with_metadata:
            row, wrong = verify_metadata(context, deep=deep)
            rows.append(row)
            failures += wrong
    return Report(
        operation="verify",
        rows=rows,
        failures=failures,
        totals={
            "partitions": len(looked),
            "bytes": sum(int(row["bytes"] or 0) for row in rows),
            "findings": len(failures),
        },
        seconds=measure.seconds,
        counts=measure.counts,
    )


def audit(
    context: Context,
    image: ClusterImage,
    topics: Sequence[TopicImage],
    failures: list[Failure],
    *,
    deep: bool,
    only: Collection[PartitionKey] | None = None,
) -> list[Audited]:
    """Look at the partitions of the topics (those in ``only``, where it is given), by topic and partition. A
    topic whose remote table cannot be read is a failure.

    What is found under a view that has passed meanwhile says nothing (a member that left the ISR may well be
    behind): such a partition is looked at again, and left out when its topic is gone.
    """
    audits: dict[PartitionKey, Audited] = {}
    for _ in range(_ROUNDS):
        looked = _audit_once(context, image, topics, failures, deep, only)
        audits |= looked
        doubtful = {key: each for key, each in looked.items() if each.findings}
        if not doubtful:
            break
        image = context.metadata.image()
        passed = {key for key, each in doubtful.items() if not _is_present(image, key, each.site.view)}
        for key in passed:
            del audits[key]
        topics = [image.topics[topic_id] for topic_id in sorted({key[0] for key in passed} & image.topics.keys())]
        only = passed
        if not topics:
            break
    return sorted(audits.values(), key=lambda each: (each.site.view.topic, each.site.view.partition))


def _is_present(image: ClusterImage, key: PartitionKey, view: PartitionView) -> bool:
    return key[0] in image.topics and image.view(*key) == view


def _audit_once(
    context: Context,
    image: ClusterImage,
    topics: Sequence[TopicImage],
    failures: list[Failure],
    deep: bool,
    only: Collection[PartitionKey] | None,
) -> dict[PartitionKey, Audited]:
    views = {
        topic.topic_id: [v for v in image.views(topic.name) if only is None or partition_key(v) in only]
        for topic in topics
    }
    remote = _remote(context, image, [topic for topic in topics if views[topic.topic_id]], failures)
    audits: dict[PartitionKey, Audited] = {}
    for topic in topics:
        snapshots = context.topic_config(image, topic).snapshots
        for view in views[topic.topic_id]:
            part = remote[topic.topic_id](view.partition) if topic.topic_id in remote else None
            audits[partition_key(view)] = Audited(LookWork(context.site(view), deep, part, snapshots))
    _look(context, audits)
    if deep:
        _read(context, audits)
    return audits


def failures_of(audits: Sequence[Audited]) -> list[Failure]:
    """All findings, as failures of a report."""
    return [Failure.of(finding.where, finding.error) for each in audits for finding in each.findings]


def _remote(
    context: Context, image: ClusterImage, topics: Sequence[TopicImage], failures: list[Failure]
) -> dict[str, Callable[[int], RemotePart]]:
    """By topic id, what is remote of each partition, of topics that are tiered. Where that cannot be told it is a
    failure of the topic, and the brokers are looked at all the same.
    """

    def ask(topic: TopicImage) -> Callable[[int], RemotePart]:
        table = context.remote_table(topic)
        log = table.load()
        missing = frozenset(segment.path for segment in table.missing_objects(log))
        return lambda partition: RemotePart(table.remote, table.folder, log.of_partition(partition), missing)

    found: dict[str, Callable[[int], RemotePart]] = {}
    tiered = [topic for topic in topics if context.topic_config(image, topic).remote_storage_enable]
    for outcome in ask_remote(context, ask, tiered):
        match outcome:
            case Done(topic, parts):
                found[topic.topic_id] = parts
            case Failed(topic, error):
                failures.append(Failure.of(topic.name, error))
    return found


def _look(context: Context, audits: dict[PartitionKey, Audited]) -> None:
    """Step 1."""
    context.progress.start("verify", len(audits), "partitions")
    for outcome in context.tasks.run(look_at_partition, [each.work for each in audits.values()]):
        each = audits[partition_key(outcome.item.site.view)]
        match outcome:
            case Failed(work, error):
                each.findings.append(Finding(str(work), error))
            case Done(_, looked):
                each.looked = looked
                each.findings += looked.findings
        context.progress.advance()
    context.progress.finish()


def _read(context: Context, audits: dict[PartitionKey, Audited]) -> None:
    """Steps 2 and 3."""
    works = [work for each in audits.values() for work in _groups(each)]
    context.progress.start("verify --deep", len(works), "groups of files")
    for outcome in context.tasks.run(read_files, works, lambda work: work.size_bytes):
        work = outcome.item
        each = audits[partition_key(work.site.view)]
        match outcome:
            case Failed(_, error):
                each.findings.append(Finding(work.where, error, work.place))
            case Done(_, read):
                each.findings += read.findings
                found = each.good if work.of_log else each.spare
                found += [Copy(work.place, work.store, held, crc32) for held, crc32 in read.good]
        context.progress.advance(work.size_bytes)
    context.progress.finish()
    for each in audits.values():
        for copy, agreed, error in list(odd_copies(each.good, each.site.view.leader)):
            held, where = copy.held, f"{each.site} in the remote tier"
            damage = BadFile(held.file, held.start, held.end) if agreed else None
            if copy.place is not None:
                where = str(each.site.replica(copy.place))
            each.findings.append(Finding(where, error, copy.place, damage))
            # Nobody is to copy it, nor, while it is not known which of them is right, any other of that name.
            each.good = [one for one in each.good if one != copy and (agreed or one.held.name != held.name)]


def _groups(each: Audited) -> Iterator[ReadWork]:
    if each.looked is None:
        return
    for look in each.looked.replicas:
        store = each.store(look.broker_id)
        yield from groups_of(each.site, look.broker_id, store, look.live)
        yield from groups_of(each.site, look.broker_id, store, look.spare, of_log=False)
    if each.looked.remote:
        yield from groups_of(each.site, None, each.store(None), each.looked.remote)


def _row(each: Audited) -> dict[str, Value]:
    assert each.looked is not None
    looks = each.looked.replicas
    return {
        "topic": each.site.view.topic,
        "partition": each.site.view.partition,
        "replicas": len(looks),
        "files": sum(len(look.live) + len(look.bad) for look in looks),
        "bytes": sum(held.size_bytes for look in looks for held in look.live),
        "remote_files": len(each.looked.remote),
        "findings": len(each.findings),
    }

"""Finds damage in the replicas and remote logs of partitions.

1. tasks, one per partition: list all replicas, and check names, sizes, contiguity and footers (``structure``,
   ``registers``). Compare the replicas with the remote tables, which are read after the leaders
   were listed (``remote``). If many partitions of a topic are checked, one walk through the topic's folder on each
   broker lists them all; a partition with findings is listed again, replica by replica
2. check partitions with uncertain findings again: two successive checks must agree
3. with ``deep``, tasks, one per group of files: check every byte against its checksums (``content``)
4. compare the copies of each file, which must be equal (``findings``). If the leader has the records of remote
   segments in different files, or in different bytes, all records are compared
   (``stratalog.engine.replicas.remote_records``)
5. discard findings under an outdated view, and check such partitions again
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.logs import NOT_WALKED, Walked, walk_topics
from stratalog.engine.replicas.remote_records import RecordsWork, compare_records
from stratalog.engine.replicas.repair import BadFile, Copy, HeldFile
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.upkeep.tiering.remote_logs import ask_remote
from stratalog.engine.upkeep.verification.content import ReadWork, groups_of, is_small, read_files
from stratalog.engine.upkeep.verification.findings import Finding, odd_copies, other_records
from stratalog.engine.upkeep.verification.remote import RemotePartition, RemoteWork, check_remote
from stratalog.engine.upkeep.verification.structure import PartitionStructure, StructureWork, partition_structure
from stratalog.partitions.errors import CorruptionError, RemoteObjectMissingError, StaleMetadataError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store import Store
from stratalog.tiering.remote_file import remote_file

_ROUNDS = 5
"""The maximum number of checks of one partition, if its view or findings keep changing."""


@dataclass(slots=True)
class Audited:
    """One partition, with all its findings."""

    work: StructureWork
    looked: PartitionStructure | None = None
    remote: RemotePartition | None = None
    """The partition's segments in the remote table; None if the topic is not tiered, or the segments are unknown.
    """
    remote_unread: bool = False
    cold: tuple[HeldFile, ...] = ()
    """The objects of the remote tier whose footers match the table."""
    findings: list[Finding] = field(default_factory=list)
    good: list[Copy] = field(default_factory=list)
    """With ``deep``: the intact files of logs and of the remote tier. Every byte was read, and equals the byte in
    every copy.
    """
    spare: list[Copy] = field(default_factory=list)
    """With ``deep``: the intact files of replicas that no log uses. Every byte was read."""

    @property
    def replicas(self) -> PartitionReplicas:
        """The partition, under the view of the audit."""
        return self.work.replicas

    def store(self, place: int | None) -> Store:
        """The store of a broker, or of the remote tier."""
        if place is not None:
            return self.replicas.replica(place).store
        assert self.remote is not None
        return self.remote.store


def audit(
    metadata: MetadataClient,
    storage: Storage,
    image: ClusterImage,
    topics: Sequence[TopicImage],
    run: OperationRun,
    *,
    deep: bool,
    only: Collection[TopicIdPartition] | None = None,
) -> list[Audited]:
    """Check the partitions of the topics; if ``only`` is given, only its partitions. Results are sorted by topic
    and partition. A topic whose remote table cannot be read is a failure.

    Findings under an outdated view prove nothing, because a member that has left the ISR may be behind. A
    partition with an outdated view is checked again, or left out if its topic has been deleted.
    """
    audits: dict[TopicIdPartition, Audited] = {}
    for _ in range(_ROUNDS):
        looked = _audit_once(storage, image, topics, run, deep, only)
        audits |= looked
        doubtful = {key: each for key, each in looked.items() if each.findings}
        if not doubtful:
            break
        image = metadata.image()
        passed = {
            key
            for key, each in doubtful.items()
            if key[0] not in image.topics or image.view(*key) != each.replicas.view
        }
        if not passed:
            break
        for key in passed:
            del audits[key]
        topics = [image.topics[topic_id] for topic_id in sorted({key[0] for key in passed} & image.topics.keys())]
        only = passed
    else:
        run.failures += [
            Failure.of(
                each.replicas,
                StaleMetadataError("its metadata changes faster than the partition can be read; try again"),
            )
            for key, each in doubtful.items()
            if key in passed and key[0] in image.topics
        ]
    return sorted(audits.values(), key=lambda each: (each.replicas.view.topic, each.replicas.view.partition))


def _audit_once(
    storage: Storage,
    image: ClusterImage,
    topics: Sequence[TopicImage],
    run: OperationRun,
    deep: bool,
    only: Collection[TopicIdPartition] | None,
) -> dict[TopicIdPartition, Audited]:
    audits: dict[TopicIdPartition, Audited] = {}
    for topic in topics:
        snapshots = topic_config_of(image, topic).snapshots
        for view in image.views(topic.name):
            if only is None or view.key in only:
                audits[view.key] = Audited(StructureWork(storage.replicas(view), deep, snapshots))
    _audit_until_sure(storage, image, audits, run)
    if deep:
        _read(run, audits)
        _add_missing(storage, image, audits)
    return audits


def failures_of(audits: Sequence[Audited]) -> list[Failure]:
    return [Failure.of(found.where, found.error) for each in audits for found in each.findings if not found.unused]


def found_in(audits: Iterable[Audited]) -> dict[TopicIdPartition, list[Failure]]:
    """The findings by partition. The list is empty for a partition without findings."""
    return {each.replicas.view.key: failures_of([each]) for each in audits}


def unseen_in(audits: Iterable[Audited]) -> dict[TopicIdPartition, set[str]]:
    """By partition, the replicas on fenced brokers, which no check reads, and the remote logs that could not be
    read; under the names that findings give them.
    """
    unseen: dict[TopicIdPartition, set[str]] = {}
    for each in audits:
        replicas, view = each.replicas, each.replicas.view
        places = {f"{replicas} on broker {one}" for one in view.replicas if view.brokers[one].fenced}
        unseen[view.key] = places | ({f"{replicas} in the remote tier"} if each.remote_unread else set())
    return unseen


def rewrites_of(audits: Iterable[Audited]) -> dict[str, str]:
    """The rewrites of tables by other programs, by topic id."""
    parts = ((each.replicas.view.topic_id, each.remote) for each in audits)
    return {topic_id: part.rewrite for topic_id, part in parts if part is not None and part.rewrite}


def notes_of(audits: Sequence[Audited]) -> list[str]:
    """The findings that are not failures: findings about files that no log uses."""
    return [f"{found.where}: {found.error}" for each in audits for found in each.findings if found.unused]


# ------------------------------------------------------------------------------------ structure


def _audit_until_sure(
    storage: Storage,
    image: ClusterImage,
    audits: Mapping[TopicIdPartition, Audited],
    run: OperationRun,
) -> None:
    """Steps 1 and 2. Findings that still differ between the last checks are reported, too."""
    failed: dict[str, Failure] = {}
    walked = walk_topics(storage, image, [each.replicas for each in audits.values()])
    if walked:
        _audit(storage, image, audits, run, failed, walked)
    unsure = {key: each for key, each in audits.items() if not walked or each.findings}
    signatures: dict[TopicIdPartition, set[tuple[str, str]]] = {}
    for _ in range(_ROUNDS if unsure else 0):
        _audit(storage, image, unsure, run, failed)
        before, signatures = signatures, {}
        for key, each in unsure.items():
            now = {found.signature for found in each.findings if not found.is_sure}
            if not now <= before.get(key, set()):
                signatures[key] = now
        unsure = {key: unsure[key] for key in signatures}
        if not unsure:
            break
    run.failures += failed.values()


def _audit(
    storage: Storage,
    image: ClusterImage,
    audits: Mapping[TopicIdPartition, Audited],
    run: OperationRun,
    failed: dict[str, Failure],
    walked: Walked = NOT_WALKED,
) -> None:
    """Step 1."""
    run.progress.start("verify", len(audits), "partitions")
    works = [replace(each.work, listed=walked.get(key, {})) for key, each in audits.items()]
    for outcome in run.tasks.run(partition_structure, works):
        each = audits[outcome.item.replicas.view.key]
        each.looked, each.remote, each.cold = None, None, ()
        match outcome:
            case Failed(work, error):
                each.findings = [Finding(str(work), error)]
            case Done(_, looked):
                each.looked, each.findings = looked, list(looked.findings)
        run.progress.advance()
    run.progress.finish()
    _load_remote(storage, image, audits, failed)
    remotes = [
        RemoteWork(each.replicas, each.remote, None if each.looked is None else each.looked.leader_log)
        for each in audits.values()
        if each.remote is not None
    ]
    for checked in run.tasks.run(check_remote, remotes):
        each = audits[checked.item.replicas.view.key]
        match checked:
            case Failed(remote, error):
                each.findings.append(Finding(f"{remote} in the remote tier", error))
            case Done(_, (cold, wrong)):
                each.cold = cold
                each.findings += wrong


def _load_remote(
    storage: Storage, image: ClusterImage, audits: Mapping[TopicIdPartition, Audited], failed: dict[str, Failure]
) -> None:
    """The current remote segments of the partitions of tiered topics. A topic whose table cannot be read is in
    ``failed``; its brokers are checked anyway.
    """

    def ask(topic: TopicImage) -> Callable[[int], RemotePartition]:
        table = storage.remote_table(topic)
        log = table.load()
        missing = frozenset(segment.path for segment in table.missing_objects(log))
        rewrite = "" if log.rewrite is None else str(log.rewrite)
        return lambda partition: RemotePartition(
            table.remote,
            table.folder,
            log.of_partition(partition),
            missing,
            rewrite,
            log.generation(partition),
            log.rules[partition].generation if partition in log.rules else 0,
        )

    topics = [image.topics[topic_id] for topic_id in sorted({key[0] for key in audits})]
    tiered = [topic for topic in topics if topic_config_of(image, topic).remote_storage_enable]
    for outcome in ask_remote(storage, ask, tiered):
        match outcome:
            case Done(topic, parts):
                failed.pop(topic.name, None)
                for (topic_id, partition), each in audits.items():
                    if topic_id == topic.topic_id:
                        each.remote, each.remote_unread = parts(partition), False
            case Failed(topic, error):
                failed[topic.name] = Failure.of(topic.name, error)
                for (topic_id, _), each in audits.items():
                    each.remote_unread = each.remote_unread or topic_id == topic.topic_id


def _add_missing(storage: Storage, image: ClusterImage, audits: Mapping[TopicIdPartition, Audited]) -> None:
    """Report remote objects that were missing when this run tried to read them, if the table still lists them.
    (During a long run, retention may delete some of them.)
    """
    missing = {key: each for key, each in audits.items() if any(map(_is_gone, each.findings))}
    if missing:
        _load_remote(storage, image, missing, {})
        for each in missing.values():
            each.findings = [found for found in each.findings if not _is_gone(found) or _is_listed(each, found)]


def _is_gone(found: Finding) -> bool:
    return isinstance(found.error, RemoteObjectMissingError) and isinstance(found.damage, BadFile)


def _is_listed(each: Audited, found: Finding) -> bool:
    assert isinstance(found.damage, BadFile)
    return each.remote is None or each.remote.lists(found.damage.file.object.name)


# ------------------------------------------------------------------------------------ all bytes


def _read(run: OperationRun, audits: Mapping[TopicIdPartition, Audited]) -> None:
    """Steps 3 and 4."""
    for each in audits.values():
        for broker, read in () if each.looked is None else each.looked.read:
            each.findings += read.findings
            each.good += [Copy(broker, each.store(broker), held, crc32) for held, crc32 in read.good]
    works = [work for each in audits.values() for work in _groups(each)]
    run.progress.start("verify --deep", len(works), "groups of files")
    for outcome in run.tasks.run(read_files, works, lambda work: work.size_bytes):
        work = outcome.item
        each = audits[work.replicas.view.key]
        match outcome:
            case Failed(_, error):
                each.findings.append(Finding(work.where, error, work.place))
            case Done(_, read):
                each.findings += read.findings
                found = each.good if work.of_log else each.spare
                found += [Copy(work.place, work.store, held, crc32) for held, crc32 in read.good]
        run.progress.advance(work.size_bytes)
    run.progress.finish()
    compared = [one for each in audits.values() if (one := _records_work(each)) is not None]
    for each in audits.values():
        for copy, agreed, error in list(odd_copies(each.good, each.replicas.view.leader)):
            held, where = copy.held, f"{each.replicas} in the remote tier"
            damage = BadFile(held.file, held.start, held.end) if agreed else None
            if copy.place is not None:
                where = str(each.replicas.replica(copy.place))
            each.findings.append(Finding(where, error, copy.place, damage))
            # The odd copy must not be a source. If it is unknown which copy is right, no file of that name may be
            # a source.
            each.good = [one for one in each.good if one != copy and (agreed or one.held.name != held.name)]
    _compare_records(run, audits, compared)


def _compare_records(
    run: OperationRun, audits: Mapping[TopicIdPartition, Audited], works: Sequence[RecordsWork]
) -> None:
    """Step 4, for records."""
    for outcome in run.tasks.run(compare_records, works):
        each = audits[outcome.item.replicas.view.key]
        where = f"{each.replicas} in the remote tier"
        match outcome:
            case Failed(_, CorruptionError()):
                pass  # the read of all bytes has reported the damage
            case Failed(_, error):
                each.findings.append(Finding(where, error))
            case Done(work, first) if first is not None:
                each.findings.append(Finding(where, other_records(str(work), first, each.replicas.view.leader)))
                # Neither side may be a source until it is known which side is right.
                each.good = [copy for copy in each.good if copy.held.end <= first]


def _records_work(each: Audited) -> RecordsWork | None:
    """The comparison of remote segments whose records the leader has in different files, or in a merged segment
    with different bytes. None if there are no such segments.
    """
    remote, leader = each.remote, each.replicas.view.leader
    if remote is None or each.looked is None or leader is None:
        return None
    mine = {_content(copy) for copy in each.good if copy.place == leader}
    appends = {copy.held.name for copy in each.good if copy.place == leader and not copy.held.name.merged}
    others = {
        copy.held.file.object.name
        for copy in each.good
        if copy.place is None and _content(copy) not in mine and copy.held.name not in appends
    }
    segments = tuple(one for one in remote.segments if remote_file(remote.folder, one).object.name in others)
    return RecordsWork(each.replicas, remote.store, remote.folder, segments) if segments else None


def _content(copy: Copy) -> tuple[int, int, int]:
    return copy.held.start, copy.held.end, copy.content


def _groups(each: Audited) -> Iterator[ReadWork]:
    if each.looked is None:
        return
    for look in each.looked.replicas:
        store = each.store(look.broker_id)
        rest = [held for held in look.live if not is_small(held.file)]  # step 1 has already read the small files
        yield from groups_of(each.replicas, look.broker_id, store, rest)
        yield from groups_of(each.replicas, look.broker_id, store, look.spare, of_log=False)
    if each.cold:
        yield from groups_of(each.replicas, None, each.store(None), each.cold)

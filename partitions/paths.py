"""Every name in storage: built and parsed only in this module (protocol section 1).

    broker.json                                                     the owner of a root
    <incarnation>/<topic>-<topic_id>/<partition>.<assignment>/             the folder of one replica
        <base>.<epoch>.parquet          one append: records [base, next)
        <base>-<next>.<epoch>.parquet   a merged segment: records [base, next)
        <base>-<next>.<epoch>.<generation>.parquet      a segment from which records were removed by a rule
        <epoch>.epoch                   joined leader epoch; JSON lineage, checksum
        <offset>.<epoch>.hw             high watermark reached under an epoch; empty
        <offset>.local                  local log start; JSON producer state, checksum
        <end>-<epoch>.checkpoint        a snapshot: the state after the records [0, end), the last of them of epoch
        <end>-<epoch>.<generation>.checkpoint       a snapshot that follows an erasure (snapshots.erasure)
        <snapshot>.checkpoint.<position>.part       bytes of a snapshot being fetched, starting at that position
    <incarnation>/__remote_log_manager/<version>.schedule           the partitions due for tiering; a hint
    <incarnation>/__maintenance/<version>.schedule                  the last runs of `maintain`'s steps; a hint
    <incarnation>/__replication_throttle/<version>.schedule         the throttled copies so far; a hint
    <directory_id>/__cluster_metadata/                              the folder of one voter
        <epoch>.claim                   the claimant's id; <epoch>.<tag>.claim if the cluster has a key
        <base>.<epoch>.parquet          one committed batch of metadata records
        <end>-<epoch>.checkpoint        a snapshot, as above
    <topic>-<topic_id>/<partition>/<name>                           a segment in the remote tier
    <topic>-<topic_id>/<partition>/<rebuilt>/<name>                 its n-th replacement, rebuilt by a heal
    _clusters/<cluster_id>/<offset>.<digest>.json                   there: a cluster at a metadata offset
    _snapshots/<topic>-<topic_id>/<partition>/<end>-<epoch>.<id>.parquet
                                    there: the latest record of each key, in a table;
                                    <end>-<epoch>.<generation>.<id>.parquet after a removal of records
    <id>.probe                                                      tests a store, and is deleted
    <topic>/<partition>/epoch-<epoch>/<base>.parquet                records that ``recover`` has exported

Offsets and positions have 20 digits and epochs 10, so that names sort as numbers; greater numbers are never
written, and a number of more than 64 bits is not an offset. An incarnation folder is ``<directory_id>.<8 hex
digits>``: the directory id of the root and, if known, a digest of the identity of its ``broker.json`` as an
object. A root that was restored from an older copy has the directory id of the original, and drivers that knew the
original must not write to the restored root.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import total_ordering

from stratalog.partitions.errors import InvalidCallError, InvalidTopicError
from stratalog.partitions.identity import ID_LENGTH, is_id
from stratalog.partitions.numbers import GREATEST_EPOCH

BROKER_FILE = "broker.json"
METADATA_TOPIC = "__cluster_metadata"
DELTA_LOG = "_delta_log"
"""The folder of a Delta table's log, inside the table's folder."""
DESCRIPTIONS = "_clusters"
SNAPSHOT_TABLES = "_snapshots"
"""The folder of the remote tier with the tables of the latest record of each key."""
REMOTE_LOG_MANAGER, MAINTENANCE = "__remote_log_manager", "__maintenance"
REPLICATION_THROTTLE = "__replication_throttle"
SCHEDULES = (REMOTE_LOG_MANAGER, MAINTENANCE)
"""The jobs that store the times of their last runs."""
MAX_TOPIC_LENGTH = 222
"""The maximum length of a topic name. Kafka's limit is 249, with room for a partition number. Here a folder name
also has 33 characters for the topic id, and file systems allow 255. Object storage allows more, but a restore may
move a topic to folders.
"""
GREATEST_OFFSET = 9 * 10**18 - 1
"""The maximum offset in a name: 64 bits."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+\Z")
_OFFSET = "0[0-8][0-9]{18}"
_DATA = re.compile(rf"({_OFFSET})(?:-({_OFFSET}))?\.([0-9]{{10}})(?:\.([0-9]{{10}}))?\.parquet\Z")
_EPOCH = re.compile(r"([0-9]{10})\.epoch\Z")
_WATERMARK = re.compile(rf"({_OFFSET})\.([0-9]{{10}})\.hw\Z")
_LOCAL = re.compile(rf"({_OFFSET})\.local\Z")
_CLAIM = re.compile(r"([0-9]{10})(?:\.([0-9a-f]{32}))?\.claim\Z")
_CHECKPOINT = re.compile(rf"({_OFFSET})-([0-9]{{10}})(?:\.([0-9]{{10}}))?\.checkpoint(?:\.({_OFFSET})\.part)?\Z")
_SCHEDULE = re.compile(rf"({_OFFSET})\.schedule\Z")
_DESCRIPTION = re.compile(rf"({_OFFSET})\.([0-9a-f]{{16}})\.json\Z")
_PUBLISHED = re.compile(rf"({_OFFSET})-([0-9]{{10}})(?:\.([0-9]{{10}}))?\.([0-9a-f]{{32}})\.parquet\Z")
_DIGEST = re.compile(r"[0-9a-f]{8}\Z")
_OURS = (".parquet", ".epoch", ".hw", ".local", ".claim", ".checkpoint", ".part", ".schedule", ".json")
_PROBE = ".probe"
_PARTITION = re.compile(r"(?:0|[1-9][0-9]{0,9})\Z")
_ASSIGNMENT = re.compile(r"(?:0|[1-9][0-9]{0,18})\Z")


@total_ordering
@dataclass(frozen=True, slots=True)
class DataName:
    """A data file: an append (``next_offset`` is None: see its footer) or a merged segment."""

    base_offset: int
    next_offset: int | None
    epoch: int
    generation: int = 0
    """The number of the removal rule that a merged segment follows (``partitions.removal``); 0: none."""

    @property
    def merged(self) -> bool:
        """Whether this is a merged segment."""
        return self.next_offset is not None

    @property
    def least_end(self) -> int:
        """The end of the file's records; for an append, a lower bound."""
        return self.base_offset + 1 if self.next_offset is None else self.next_offset

    def __lt__(self, other: DataName) -> bool:
        return self._rank() < other._rank()

    def _rank(self) -> tuple[int, bool, int, int, bool, int]:
        end, plain = self.next_offset or 0, not self.generation
        return self.base_offset, self.next_offset is None, end, self.epoch, plain, self.generation

    def __str__(self) -> str:
        if self.next_offset is None:
            return f"{_digits(self.base_offset)}.{_epoch_digits(self.epoch)}.parquet"
        generation = f".{_epoch_digits(self.generation)}" if self.generation else ""
        span = f"{_digits(self.base_offset)}-{_digits(self.next_offset)}"
        return f"{span}.{_epoch_digits(self.epoch)}{generation}.parquet"


@dataclass(frozen=True, slots=True, order=True)
class EpochName:
    """A register that says: the replica has joined this leader epoch."""

    epoch: int

    def __str__(self) -> str:
        return f"{_epoch_digits(self.epoch)}.epoch"


@dataclass(frozen=True, slots=True, order=True)
class WatermarkName:
    """A register that says: under ``epoch`` the high watermark reached ``offset``."""

    offset: int
    epoch: int

    def __str__(self) -> str:
        return f"{_digits(self.offset)}.{_epoch_digits(self.epoch)}.hw"


@dataclass(frozen=True, slots=True, order=True)
class LocalStartName:
    """A register that says: the local log start offset reached ``offset``."""

    offset: int

    def __str__(self) -> str:
        return f"{_digits(self.offset)}.local"


@dataclass(frozen=True, slots=True, order=True)
class ClaimName:
    """A driver's claim of this metadata epoch."""

    epoch: int
    tag: str = ""
    """32 hexadecimal digits that only a holder of the cluster key can compute; empty without a key."""

    def __str__(self) -> str:
        epoch = _epoch_digits(self.epoch)
        return f"{epoch}.{self.tag}.claim" if self.tag else f"{epoch}.claim"


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """A snapshot: the state after the records ``[0, end_offset)``, the last of which has ``epoch``."""

    end_offset: int
    epoch: int
    generation: int = 0
    """The number of the erasure that it follows (``snapshots.erasure``); 0: none."""

    def __str__(self) -> str:
        generation = f".{_epoch_digits(self.generation)}" if self.generation else ""
        return f"{_digits(self.end_offset)}-{_epoch_digits(self.epoch)}{generation}.checkpoint"


@dataclass(frozen=True, slots=True, order=True)
class ChunkName:
    """The bytes starting at ``position`` of a snapshot that is being fetched."""

    end_offset: int
    epoch: int
    position: int
    generation: int = 0

    @property
    def checkpoint(self) -> CheckpointName:
        """The snapshot to which these bytes belong."""
        return CheckpointName(self.end_offset, self.epoch, self.generation)

    def __str__(self) -> str:
        return f"{self.checkpoint}.{_digits(self.position)}.part"


Name = DataName | EpochName | WatermarkName | LocalStartName | ClaimName | CheckpointName | ChunkName


def _digits(offset: int) -> str:
    """The digits of an offset. Raises: InvalidCallError for an offset that no name can have."""
    if not 0 <= offset <= GREATEST_OFFSET:
        raise InvalidCallError(f"offset {offset} cannot be part of a file name: the greatest is {GREATEST_OFFSET}")
    return f"{offset:020d}"


def _epoch_digits(epoch: int) -> str:
    """The digits of an epoch; see ``_digits``."""
    if not 0 <= epoch <= GREATEST_EPOCH:
        raise InvalidCallError(f"epoch {epoch} cannot be part of a file name: the greatest is {GREATEST_EPOCH}")
    return f"{epoch:010d}"


def parse_name(text: str) -> Name | None:
    """The meaning of a file name (without folder); None for a foreign name."""
    if m := _DATA.match(text):
        base, following, epoch, generation = m.groups()
        if following is not None and int(following) <= int(base):
            return None
        if generation is not None and (following is None or int(generation) == 0):
            return None
        next_offset = None if following is None else int(following)
        return DataName(int(base), next_offset, int(epoch), int(generation or 0))
    if m := _WATERMARK.match(text):
        return WatermarkName(int(m[1]), int(m[2]))
    if m := _EPOCH.match(text):
        return EpochName(int(m[1]))
    if m := _LOCAL.match(text):
        return LocalStartName(int(m[1]))
    if m := _CLAIM.match(text):
        return ClaimName(int(m[1]), m[2] or "")
    if m := _CHECKPOINT.match(text):
        end, epoch, generation, position = m.groups()
        if generation is not None and int(generation) == 0:
            return None
        if position is None:
            return CheckpointName(int(end), int(epoch), int(generation or 0))
        return ChunkName(int(end), int(epoch), int(position), int(generation or 0))
    return None


def may_be_ours(text: str) -> bool:
    """A cheap test whether a file name (without folder) looks like a name of the log, so that foreign files need
    no request.
    """
    return text.endswith(_OURS) and text[0].isdigit()


def check_topic_name(topic: str) -> None:
    """Check Kafka's rules for topic names, within ``MAX_TOPIC_LENGTH``.

    Raises: InvalidTopicError.
    """
    if not topic or len(topic) > MAX_TOPIC_LENGTH or topic in (".", "..") or not _TOPIC.match(topic):
        raise InvalidTopicError(
            f"topic name {topic!r} is not valid: use 1 to {MAX_TOPIC_LENGTH} of a-z A-Z 0-9 . _ - "
            "(and neither '.' nor '..')"
        )


def topic_folder(topic: str, topic_id: str) -> str:
    """The folder of a topic, in a directory of a broker or in the remote tier."""
    return f"{topic}-{topic_id}"


def parse_topic_folder(folder: str) -> tuple[str, str] | None:
    """``(topic, topic_id)`` of a topic's folder, or None if it is not the folder of a topic."""
    topic, dash, topic_id = folder[: -ID_LENGTH - 1], folder[-ID_LENGTH - 1 : -ID_LENGTH], folder[-ID_LENGTH:]
    return (topic, topic_id) if topic and dash == "-" and is_id(topic_id) else None


def incarnation_folder_of(directory_id: str, root: str) -> str:
    """The folder of an incarnation below its root. ``root`` is the identity of the root's ``broker.json`` as an
    object (empty if unknown).
    """
    digest = hashlib.blake2b(root.encode(), digest_size=4).hexdigest()
    return f"{directory_id}.{digest}" if root else directory_id


def is_top_folder(folder: str) -> bool:
    """Whether a folder directly below a root may belong to the product: to an incarnation, to a topic in the
    remote tier, to the descriptions, or to the tables of snapshots. A bucket may also have other content.
    """
    incarnation, _, digest = folder.partition(".")
    return (
        folder in (DESCRIPTIONS, SNAPSHOT_TABLES)
        or parse_topic_folder(folder) is not None
        or (is_id(incarnation) and (folder == incarnation or _DIGEST.match(digest) is not None))
    )


def probe_name(probe_id: str) -> str:
    """The name of an object that tests a store and is then deleted: directly below a root, or next to hints. The
    name differs from all folders of the product, because the object may remain after a crash.
    """
    return probe_id + _PROBE


def is_probe(name: str) -> bool:
    """Whether a name in storage is the name of a probe."""
    return name.endswith(_PROBE) and is_id(name.removesuffix(_PROBE))


def topic_path(incarnation_folder: str, topic: str, topic_id: str) -> str:
    """The folder of a topic under the root of a broker."""
    return f"{incarnation_folder}/{topic_folder(topic, topic_id)}"


def replica_path(incarnation_folder: str, topic: str, topic_id: str, partition: int, assignment: int) -> str:
    """The folder of one incarnation of one replica under the root of its broker."""
    return f"{topic_path(incarnation_folder, topic, topic_id)}/{partition}.{assignment}"


def parse_replica_path(path: str) -> tuple[str, str, str, int, int] | None:
    """The arguments of ``replica_path`` that give this path; None if it is not the folder of a replica."""
    incarnation_folder, _, rest = path.partition("/")
    folder, _, last = rest.partition("/")
    topic = parse_topic_folder(folder)
    partition, dot, assignment = last.partition(".")
    if (
        topic is None
        or not dot
        or not is_top_folder(incarnation_folder)
        or parse_topic_folder(incarnation_folder) is not None
    ):
        return None
    if not (_PARTITION.match(partition) and _ASSIGNMENT.match(assignment)):
        return None
    return incarnation_folder, *topic, int(partition), int(assignment)


def voter_path(directory_id: str) -> str:
    """The folder of a metadata voter under the root of its broker."""
    return f"{directory_id}/{METADATA_TOPIC}"


def is_log_folder(path: str) -> bool:
    """Whether a path is the folder of a replica or voter, which should contain only files of the log."""
    return base_name(path) == METADATA_TOPIC or parse_replica_path(path) is not None


def schedule_folder(incarnation_folder: str, of: str) -> str:
    """The folder of a schedule, one of ``SCHEDULES`` or the throttle, under the root of a broker."""
    return f"{incarnation_folder}/{of}"


def schedule_path(incarnation_folder: str, of: str, version: int) -> str:
    return f"{schedule_folder(incarnation_folder, of)}/{_digits(version)}.schedule"


def parse_schedule_name(text: str) -> int | None:
    """The version in a file name (without folder), or None if it is not a schedule."""
    m = _SCHEDULE.match(text)
    return None if m is None else int(m[1])


def remote_segment_path(partition: int, name: DataName, rebuilt: int = 0) -> str:
    """A segment in the remote tier, relative to the topic's folder there; ``rebuilt`` is 0 for the first upload,
    and counts the replacements of a damaged object, or of an object with different content.
    """
    return f"{partition}/{rebuilt}/{name}" if rebuilt else f"{partition}/{name}"


def parse_remote_segment_path(path: str) -> tuple[int, DataName, int] | None:
    """``(partition, name, rebuilt)`` of a remote segment, or None if the path is not a segment."""
    folder, _, last = path.rpartition("/")
    partition, slash, rebuilt = folder.partition("/")
    name = parse_name(last)
    if not isinstance(name, DataName) or not _PARTITION.match(partition):
        return None
    if not slash:
        return int(partition), name, 0
    return (int(partition), name, int(rebuilt)) if rebuilt != "0" and _PARTITION.match(rebuilt) else None


def published_path(partition: int, snapshot: CheckpointName, file_id: str) -> str:
    """A file with the records of a snapshot, relative to the folder of the table that lists it."""
    return f"{partition}/{str(snapshot).removesuffix('.checkpoint')}.{file_id}.parquet"


def parse_published_path(path: str) -> tuple[int, CheckpointName, str] | None:
    """The arguments of ``published_path`` that give this path; None if it is not such a file."""
    partition, _, name = path.partition("/")
    m = _PUBLISHED.match(name)
    if m is None or not _PARTITION.match(partition):
        return None
    end, epoch, generation, file_id = m.groups()
    if generation is not None and int(generation) == 0:
        return None
    return int(partition), CheckpointName(int(end), int(epoch), int(generation or 0)), file_id


def parse_file_path(path: str) -> tuple[str, int, DataName | CheckpointName] | None:
    """``(topic, partition, name)`` of a data file or snapshot, from a path that ends with the folder of a replica
    (or of a partition in the remote tier) and a name; None for any other path.
    """
    *_, folder, place, file = "/", "/", *path.split("/")
    topic, name = parse_topic_folder(folder), parse_name(file)
    partition = place.partition(".")[0]
    if topic is None or not _PARTITION.match(partition) or not isinstance(name, DataName | CheckpointName):
        return None
    return topic[0], int(partition), name


def segment_owner(path: str) -> tuple[str, int] | None:
    """``(topic_id, partition)`` from the path of a data file in the folder of a replica or in the remote tier;
    None for another path.
    """
    folder, _, last = path.rpartition("/")
    replica = parse_replica_path(folder)
    if replica is not None:
        return (replica[2], replica[3]) if isinstance(parse_name(last), DataName) else None
    table, _, below = path.partition("/")
    topic, remote = parse_topic_folder(table), parse_remote_segment_path(below)
    return None if topic is None or remote is None else (topic[1], remote[0])


def descriptions_path(cluster_id: str) -> str:
    """The folder with the descriptions of a cluster in the remote tier. (No topic's folder has such a name,
    because folders of topics end with an id.)
    """
    return f"{DESCRIPTIONS}/{cluster_id}"


def description_path(cluster_id: str, offset: int, digest: str) -> str:
    return f"{descriptions_path(cluster_id)}/{_digits(offset)}.{digest}.json"


def parse_description(name: str) -> tuple[int, str] | None:
    """``(offset, digest)`` of the name of a description, without folder; None for another name."""
    m = _DESCRIPTION.match(name)
    return None if m is None else (int(m[1]), m[2])


def recovered_path(topic: str, partition: int, epoch: int, base_offset: int) -> str:
    """The file for exported records that no log has any longer, relative to the export's folder."""
    return f"{topic}/{partition}/epoch-{_epoch_digits(epoch)}/{_digits(base_offset)}.parquet"


def join(*parts: str) -> str:
    """The parts of a name in storage, joined with ``/``; empty parts are skipped."""
    return "/".join(stripped for part in parts if (stripped := part.strip("/")))


def base_name(name: str) -> str:
    """The last part of a name in storage."""
    return name.rsplit("/", 1)[-1]


def name_in(folder: str, name: str) -> str:
    """A name in storage relative to a folder above it (without ``/`` at its ends): the last part for a direct
    child. A deeper name keeps its ``/``, so that no parser here accepts it: a copy inside a folder of the log is
    not part of the log.
    """
    return name.removeprefix(f"{folder}/")


def folder_of(name: str) -> str:
    """A name in storage without its last part; empty at the root."""
    return name.rpartition("/")[0]

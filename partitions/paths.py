"""Every name in storage: built and parsed here, and nowhere else (protocol section 1).

    broker.json                                                     what a root is
    <home>/<topic>-<topic_id>/<partition>.<assignment>/             the folder of one replica
        <base>.<epoch>.parquet          one append: records [base, next)
        <base>-<next>.<epoch>.parquet   a merged segment: records [base, next)
        <epoch>.epoch                   joined leader epoch; JSON lineage, checksum
        <offset>.<epoch>.hw             high watermark reached under an epoch; empty
        <offset>.local                  local log start; JSON producer state, checksum
        <end>-<epoch>.checkpoint        a snapshot: the state after the records [0, end), the last of them of epoch
        <end>-<epoch>.checkpoint.<position>.part    bytes of a snapshot on its way here, from that position on
    <home>/__remote_log_manager/<version>.schedule                  which partitions are due for tiering; a hint
    <directory_id>/__cluster_metadata/                              the folder of one voter
        <epoch>.claim                   the claimant's id
        <base>.<epoch>.parquet          one committed batch of metadata records
        <end>-<epoch>.checkpoint        a snapshot, as above
    <topic>-<topic_id>/<partition>/<name>                           a segment in the remote tier
    <topic>-<topic_id>/<partition>/<rebuilt>/<name>                 the n-th that a heal has rebuilt of that name
    _clusters/<cluster_id>/<offset>.<digest>.json                   there, too: a cluster as of a metadata offset
    <topic>/<partition>/epoch-<epoch>/<base>.parquet                records that ``recover`` has exported

Offsets and positions have 20 digits and epochs 10, so that names sort as numbers. A home is the directory id of
the root and, where that is known, a digest of what its ``broker.json`` was as an object,
``<directory_id>.<8 hex digits>``: a root that was put back from an older copy has the id of the original, and must
not be written to by those who knew that one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import total_ordering

from partitions.errors import InvalidTopicError
from partitions.identity import ID_LENGTH, is_id

BROKER_FILE = "broker.json"
METADATA_TOPIC = "__cluster_metadata"
DELTA_LOG = "_delta_log"
"""The folder of a Delta table's log, in that of the table."""
DESCRIPTIONS = "_clusters"
MAX_TOPIC_LENGTH = 249

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+\Z")
_DATA = re.compile(r"([0-9]{20})(?:-([0-9]{20}))?\.([0-9]{10})\.parquet\Z")
_EPOCH = re.compile(r"([0-9]{10})\.epoch\Z")
_WATERMARK = re.compile(r"([0-9]{20})\.([0-9]{10})\.hw\Z")
_LOCAL = re.compile(r"([0-9]{20})\.local\Z")
_CLAIM = re.compile(r"([0-9]{10})\.claim\Z")
_CHECKPOINT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint(?:\.([0-9]{20})\.part)?\Z")
_SCHEDULE = re.compile(r"([0-9]{20})\.schedule\Z")
_DESCRIPTION = re.compile(r"([0-9]{20})\.([0-9a-f]{16})\.json\Z")
_DIGEST = re.compile(r"[0-9a-f]{8}\Z")
_PARTITION = re.compile(r"(?:0|[1-9][0-9]*)\Z")


@total_ordering
@dataclass(frozen=True, slots=True)
class DataName:
    """A data file: an append (``next_offset`` is None: see its footer) or a merged segment."""

    base_offset: int
    next_offset: int | None
    epoch: int

    @property
    def merged(self) -> bool:
        """Whether this is a merged segment."""
        return self.next_offset is not None

    def __lt__(self, other: DataName) -> bool:
        return self._rank() < other._rank()

    def _rank(self) -> tuple[int, bool, int, int]:
        return self.base_offset, self.next_offset is None, self.next_offset or 0, self.epoch

    def __str__(self) -> str:
        if self.next_offset is None:
            return f"{self.base_offset:020d}.{self.epoch:010d}.parquet"
        return f"{self.base_offset:020d}-{self.next_offset:020d}.{self.epoch:010d}.parquet"


@dataclass(frozen=True, slots=True, order=True)
class EpochName:
    """The replica has joined this leader epoch."""

    epoch: int

    def __str__(self) -> str:
        return f"{self.epoch:010d}.epoch"


@dataclass(frozen=True, slots=True, order=True)
class WatermarkName:
    """Under ``epoch`` the high watermark reached ``offset``."""

    offset: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.offset:020d}.{self.epoch:010d}.hw"


@dataclass(frozen=True, slots=True, order=True)
class LocalStartName:
    """The local log start offset reached ``offset``."""

    offset: int

    def __str__(self) -> str:
        return f"{self.offset:020d}.local"


@dataclass(frozen=True, slots=True, order=True)
class ClaimName:
    """Somebody claims this metadata epoch."""

    epoch: int

    def __str__(self) -> str:
        return f"{self.epoch:010d}.claim"


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """A snapshot: what the records ``[0, end_offset)`` amount to, the last of them of ``epoch``."""

    end_offset: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


@dataclass(frozen=True, slots=True, order=True)
class ChunkName:
    """Bytes from ``position`` on of a snapshot that is being fetched."""

    end_offset: int
    epoch: int
    position: int

    @property
    def checkpoint(self) -> CheckpointName:
        """The snapshot that this is a part of."""
        return CheckpointName(self.end_offset, self.epoch)

    def __str__(self) -> str:
        return f"{self.checkpoint}.{self.position:020d}.part"


Name = DataName | EpochName | WatermarkName | LocalStartName | ClaimName | CheckpointName | ChunkName


def parse_name(text: str) -> Name | None:
    """The meaning of a file name (without folder), or None when it is none of ours."""
    if m := _DATA.match(text):
        base, following, epoch = m.groups()
        if following is not None and int(following) <= int(base):
            return None
        return DataName(int(base), None if following is None else int(following), int(epoch))
    if m := _WATERMARK.match(text):
        return WatermarkName(int(m[1]), int(m[2]))
    if m := _EPOCH.match(text):
        return EpochName(int(m[1]))
    if m := _LOCAL.match(text):
        return LocalStartName(int(m[1]))
    if m := _CLAIM.match(text):
        return ClaimName(int(m[1]))
    if m := _CHECKPOINT.match(text):
        end, epoch, position = m.groups()
        if position is None:
            return CheckpointName(int(end), int(epoch))
        return ChunkName(int(end), int(epoch), int(position))
    return None


def check_topic_name(topic: str) -> None:
    """Kafka's rules for names of topics.

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
    """``(topic, topic_id)`` of a topic's folder, or None when it is no such folder."""
    topic, dash, topic_id = folder[: -ID_LENGTH - 1], folder[-ID_LENGTH - 1 : -ID_LENGTH], folder[-ID_LENGTH:]
    return (topic, topic_id) if topic and dash == "-" and is_id(topic_id) else None


def home_folder(directory_id: str, root: str) -> str:
    """The home of an incarnation with this directory id, of which ``root`` is what its ``broker.json`` was as an
    object; empty: not known.
    """
    digest = hashlib.blake2b(root.encode(), digest_size=4).hexdigest()
    return f"{directory_id}.{digest}" if root else directory_id


def is_top_folder(folder: str) -> bool:
    """Whether a folder right below a root may be one of ours: a home, a topic's in the remote tier, or that of the
    descriptions. A bucket, or a folder in it, may have other tenants beside them.
    """
    home, _, digest = folder.partition(".")
    return (
        folder == DESCRIPTIONS
        or parse_topic_folder(folder) is not None
        or (is_id(home) and (folder == home or _DIGEST.match(digest) is not None))
    )


def topic_path(home: str, topic: str, topic_id: str) -> str:
    """The folder of a topic under the root of a broker."""
    return f"{home}/{topic_folder(topic, topic_id)}"


def replica_path(home: str, topic: str, topic_id: str, partition: int, assignment: int) -> str:
    """The folder of one incarnation of one replica under the root of its broker."""
    return f"{topic_path(home, topic, topic_id)}/{partition}.{assignment}"


def parse_replica_path(path: str) -> tuple[str, str, str, int, int] | None:
    """What ``replica_path`` made the path from, or None when it is no folder of a replica."""
    home, _, rest = path.partition("/")
    folder, _, last = rest.partition("/")
    topic = parse_topic_folder(folder)
    partition, dot, assignment = last.partition(".")
    if topic is None or not dot or not is_top_folder(home) or parse_topic_folder(home) is not None:
        return None
    if not (partition.isdecimal() and assignment.isdecimal()):
        return None
    return home, *topic, int(partition), int(assignment)


def voter_path(directory_id: str) -> str:
    """The folder of a metadata voter under the root of its broker."""
    return f"{directory_id}/{METADATA_TOPIC}"


def schedule_folder(home: str) -> str:
    """The folder of the list of partitions that are due for tiering, under the root of a broker."""
    return f"{home}/__remote_log_manager"


def schedule_path(home: str, version: int) -> str:
    """One version of that list."""
    return f"{schedule_folder(home)}/{version:020d}.schedule"


def parse_schedule_name(text: str) -> int | None:
    """The version in a file name (without folder), or None when it is no such list."""
    m = _SCHEDULE.match(text)
    return None if m is None else int(m[1])


def remote_segment_path(partition: int, name: DataName, rebuilt: int = 0) -> str:
    """A segment in the remote tier, relative to the topic's folder there; ``rebuilt`` counts from 1 on the objects
    that stand for a damaged one, 0 is the first upload.
    """
    return f"{partition}/{rebuilt}/{name}" if rebuilt else f"{partition}/{name}"


def parse_remote_segment_path(path: str) -> tuple[int, DataName, int] | None:
    """``(partition, name, rebuilt)`` of a segment in the remote tier, or None when it is no segment."""
    folder, _, last = path.rpartition("/")
    partition, slash, rebuilt = folder.partition("/")
    name = parse_name(last)
    if not isinstance(name, DataName) or not _PARTITION.match(partition):
        return None
    if not slash:
        return int(partition), name, 0
    return (int(partition), name, int(rebuilt)) if rebuilt != "0" and _PARTITION.match(rebuilt) else None


def parse_file_path(path: str) -> tuple[str, int, DataName | CheckpointName] | None:
    """``(topic, partition, name)`` of a data file or a snapshot, whose path ends with the folder of a replica, or
    that of a partition in the remote tier, and its name; None when it is no such path.
    """
    *_, folder, place, file = "/", "/", *path.split("/")
    topic, name = parse_topic_folder(folder), parse_name(file)
    partition = place.partition(".")[0]
    if topic is None or not _PARTITION.match(partition) or not isinstance(name, DataName | CheckpointName):
        return None
    return topic[0], int(partition), name


def descriptions_path(cluster_id: str) -> str:
    """The folder of the descriptions of a cluster in the remote tier. (No topic's folder has such a name: it would
    end with an id.)
    """
    return f"{DESCRIPTIONS}/{cluster_id}"


def description_path(cluster_id: str, offset: int, digest: str) -> str:
    """The description of a cluster as of metadata offset ``offset``."""
    return f"{descriptions_path(cluster_id)}/{offset:020d}.{digest}.json"


def parse_description(name: str) -> tuple[int, str] | None:
    """``(offset, digest)`` of the name of a description, without folder; None when it is none."""
    m = _DESCRIPTION.match(name)
    return None if m is None else (int(m[1]), m[2])


def recovered_path(topic: str, partition: int, epoch: int, base_offset: int) -> str:
    """An exported file of records that are in no log any more, relative to the export's folder."""
    return f"{topic}/{partition}/epoch-{epoch:010d}/{base_offset:020d}.parquet"


def join(*parts: str) -> str:
    """Parts of a name in storage, joined; empty parts vanish."""
    return "/".join(stripped for part in parts if (stripped := part.strip("/")))


def base_name(name: str) -> str:
    """The last part of a name in storage."""
    return name.rsplit("/", 1)[-1]


def name_in(folder: str, name: str) -> str:
    """A name in storage as seen from a folder above it (without ``/`` at its ends): the last part, where it lies
    directly there. What lies deeper keeps its ``/``, and so is none of the names that are parsed here: somebody's
    copy inside a folder of ours is not ours.
    """
    return name.removeprefix(f"{folder}/")


def folder_of(name: str) -> str:
    """A name in storage without its last part; empty at the root."""
    return name.rpartition("/")[0]

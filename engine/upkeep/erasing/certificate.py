"""The certificate of an erasure, as JSON: what was erased, where, and what is not erased yet.

It holds no key and no condition: only digests keyed with a salt, which it holds too, so that ``verify`` can
recognise the keys in the bytes of every copy. Anybody who has it can test whether a guessed key was erased: keep
it like a list of the keys.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.erasure import OffsetRange
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.numbers import Int64, Natural
from stratalog.partitions.rewrites.wanted_keys import WantedKeys
from stratalog.partitions.rewrites.wanted_where import RecordFinder, WantedWhere

VERSION = 1
_SALT = re.compile(r"[0-9a-f]{64}")


class ErasedFile(msgspec.Struct, frozen=True):
    """A data file of the leader, by name, with its checksum."""

    name: str
    size_bytes: Natural
    crc32: str
    """The CRC-32 of all bytes, 8 hexadecimal digits."""


class NotErased(msgspec.Struct, frozen=True):
    """Bytes that may still hold an erased record."""

    where: str
    """The broker and the file or folder."""
    why: str
    """The reason, and what to do."""
    waits: bool = False
    """Whether the next run erases it, once ``file.delete.delay.ms`` has passed."""


class ErasedIceberg(msgspec.Struct, frozen=True):
    """The Iceberg table of a topic."""

    table: str
    """A catalog, a namespace and a table."""
    sequence_number: Natural | None
    """The least sequence number of the snapshots that are left; None: older ones may hold erased values."""


class ErasedRemote(msgspec.Struct, frozen=True):
    """The remote copy of a partition. Files are objects, by path in the topic's folder."""

    version: Natural | None
    """The oldest version of the table that is left. None: older versions may hold erased values."""
    replaced: tuple[ErasedFile, ...]
    made: tuple[ErasedFile, ...]
    iceberg: ErasedIceberg | None = None
    """None: the topic had no Iceberg table."""


class ErasedTable(msgspec.Struct, frozen=True):
    """A partition in the table in which its topic publishes its snapshots."""

    version: Natural | None
    """The oldest version of the table that is left. None: older versions may hold erased values."""
    file: str | None
    """The object that the table lists for the partition, by path in the table's folder; None: it lists none."""


class ErasedPartition(msgspec.Struct, frozen=True):
    """A partition."""

    partition: Int64
    looked_to: Natural
    """The offsets below it were searched: up to the last stable offset, or the end of a later snapshot."""
    leader_epoch: Natural
    """The leader epoch in which they were searched. A snapshot of an earlier epoch that ends after them may be of
    a history that an unclean election has abandoned, so it is searched, too. 0 for a topic without snapshots."""
    searched: bool
    """Whether the leader's log was searched for the keys up to its end, and has none from ``looked_to`` on. If
    not, the certificate proves nothing of the partition."""
    generation: Natural
    """Files of a lesser generation may hold the offsets' records."""
    offsets: tuple[OffsetRange, ...]
    replaced: tuple[ErasedFile, ...]
    """The files that this run has replaced."""
    made: tuple[ErasedFile, ...]
    """The files that hold the offsets now, as gaps."""
    not_erased: tuple[NotErased, ...]
    remote: ErasedRemote | None = None
    """None: the topic was not tiered."""
    published: ErasedTable | None = None
    """None: the topic did not publish its snapshots."""


class ErasedWhere(msgspec.Struct, frozen=True):
    """A condition. Its text would be data: ``value.name = 'Ada'`` names a person. So the certificate proves only
    to those who have the text that it was carried out."""

    digest: str
    """HMAC-SHA256 of the text, with the salt."""
    columns: tuple[str, ...]
    """The columns that it reads."""


class ErasedTopic(msgspec.Struct, frozen=True):
    """A topic."""

    topic: str
    topic_id: str
    key_digests: tuple[str, ...]
    """The digests of the keys; empty for a run without keys."""
    where: ErasedWhere | None
    """The condition that the records had to meet; None: none. Without it and keys, the run carried on with an
    earlier one."""
    before_us: Int64 | None
    """Only records with an earlier timestamp, in microseconds since 1970, were erased. None: records of any time
    were.
    """
    partitions: tuple[ErasedPartition, ...]


class Certificate(msgspec.Struct, frozen=True):
    """The outcome of one run."""

    cluster: str
    time: str
    salt: str
    """32 bytes, hexadecimal: the key of the digests, HMAC-SHA256."""
    whole: bool
    """Whether nothing is left: ``not_erased`` is empty everywhere."""
    topics: tuple[ErasedTopic, ...]
    version: Int64 = VERSION

    def to_json(self) -> bytes:
        """The certificate as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @property
    def sha256(self) -> str:
        """The digest of ``to_json``, by which the history names it."""
        return hashlib.sha256(self.to_json()).hexdigest()


def described(wanted: RecordFinder | None, salt: bytes) -> tuple[tuple[str, ...], ErasedWhere | None]:
    """The records of a topic as the certificate names them: the digests of their keys, and their condition."""
    match wanted:
        case WantedKeys():
            return wanted.digests(salt), None
        case WantedWhere():
            keys = () if wanted.keys is None else wanted.keys.digests(salt)
            return keys, ErasedWhere(wanted.digest(salt), wanted.columns)
    return (), None


def read_certificate(path: Path) -> Certificate:
    """The certificate in a file. Raises: InvalidCallError."""
    try:
        found = parse_json(path.read_bytes(), Certificate)
    except OSError as error:
        raise InvalidCallError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidCallError(f"{path} is not an erasure certificate: {error}") from error
    if found.version != VERSION:
        raise InvalidCallError(f"{path} has version {found.version}, and this release reads version {VERSION}")
    if not _SALT.fullmatch(found.salt):
        raise InvalidCallError(f"{path} is not an erasure certificate: its salt is not 64 hexadecimal digits")
    return found

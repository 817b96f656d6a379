"""``cluster.toml``: the brokers and the storage of each. It contains neither secrets nor configs.

    [cluster]                       [[brokers]]                  [s3]                      (optional)
    id = "flights"                  id = 1                       endpoint_url = "https://s3.example.org"
    remote = "s3://lake/flights"    rack = "a"       (optional)  region = "eu-central-1"
    voters = [1]                    log_dir = "brokers/1"        profile = "log"
    cache = "cache"   (optional)
    client_rack = "a" (optional)

Roots are folders, ``s3://``, ``gs://``, ``az://`` or ``abfss://``; ``storage_tables`` has their options. Relative
roots are relative to the folder of the file, which may also be at any such address. Credentials come from the
environment, a profile, the machine or a provider. Configs (``retention.ms`` ...) are in the cluster's metadata, so
that all drivers use the same values.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from stratalog.engine.config.file_place import FilePlace, place_of, provider_of
from stratalog.engine.config.storage_tables import (
    TABLES,
    AzureTable,
    GcsTable,
    S3Table,
    StorageTables,
    Table,
    Text,
)
from stratalog.partitions.bounded import described
from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError
from stratalog.partitions.spelling import did_you_mean
from stratalog.partitions.store.address import NO_SECRETS, Address, parse_address, parse_folder
from stratalog.partitions.store.credentials import Provider
from stratalog.partitions.store.protocol import StoreOptions

_CLUSTER_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_STORAGE = frozenset({*TABLES, "storage"})
_SECRET = re.compile(r"secret|password|passwd|token|access_?key|credential", re.IGNORECASE)

_NOT_EXPANDED = "write the folder's path; ~ and $ are not expanded"


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """One broker and its storage."""

    broker_id: int
    rack: str | None
    log_dir: str
    """The absolute address of the broker's root: ``file:///...``, ``s3://...``, ``gs://...``, ``az://...`` or
    ``abfss://...``."""
    storage: StoreOptions = StoreOptions()  # noqa: RUF009 - immutable
    """The storage options of the broker's root."""


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A cluster file, checked."""

    path: str
    cluster_id: str
    remote: str | None
    """The absolute address of the remote tier. None: nothing can be tiered."""
    voters: tuple[int, ...]
    """The brokers that store the metadata log."""
    brokers: tuple[BrokerEntry, ...]
    remote_storage: StoreOptions = StoreOptions()  # noqa: RUF009 - immutable
    """The storage options of the remote tier."""
    storage: StorageTables = field(default_factory=StorageTables, compare=False)
    """The options of storage outside all roots."""
    cache: Path | None = None
    """A folder of this machine that caches the metadata between runs. None: no cache."""
    client_rack: str | None = None
    """The rack of readers that give no rack; see ``stratalog.engine.reading.client``."""
    warnings: tuple[str, ...] = ()
    """Warnings about allowed values that are probably mistakes."""

    def broker(self, broker_id: int) -> BrokerEntry | None:
        """Return the entry of a broker; None if the file does not have the broker."""
        return next((broker for broker in self.brokers if broker.broker_id == broker_id), None)

    @property
    def roots(self) -> Mapping[str, StoreOptions]:
        """Return the storage options of every root, including the remote tier, by address."""
        roots = {broker.log_dir: broker.storage for broker in self.brokers}
        return roots if self.remote is None else {**roots, self.remote: self.remote_storage}


class _ClusterTable(Table):
    id: Text
    voters: Annotated[list[int], Meta(min_length=1)]
    remote: Text | None = None
    cache: Text | None = None
    client_rack: Text | None = None


class _BrokerTable(Table):
    id: Annotated[int, Meta(ge=0)]
    log_dir: Text
    rack: Text | None = None
    storage: dict[str, Any] | None = None


class _RemoteTable(Table):
    storage: dict[str, Any] | None = None


class _Tables(Table):
    cluster: _ClusterTable
    brokers: Annotated[list[_BrokerTable], Meta(min_length=1)]
    remote: _RemoteTable | None = None
    s3: S3Table | None = None
    azure: AzureTable | None = None
    gcs: GcsTable | None = None


_BY_PLACE: Mapping[str, type[Table]] = {
    "": _Tables,
    "cluster": _ClusterTable,
    "brokers": _BrokerTable,
    "remote": _RemoteTable,
    **TABLES,
}
_KEYS = {name for table in _BY_PLACE.values() for name in table.__struct_fields__}

_TO_ADD: Mapping[tuple[str, str], str] = {
    ("", "cluster"): ": add a [cluster] table with the cluster's id and voters",
    ("", "brokers"): ": add a [[brokers]] table with id and log_dir for each broker",
    ("cluster", "id"): ': add a name for the cluster, such as id = "lake"',
    ("cluster", "voters"): ": add the ids of the brokers that keep the metadata, such as voters = [1, 2, 3]",
    ("brokers", "id"): ": add the broker's number, such as id = 1",
    ("brokers", "log_dir"): ': add the broker\'s folder or bucket, such as log_dir = "s3://bucket/broker-1"',
}
"""The remedy, by table and missing key."""


def load_cluster_file(path: str | Path, credentials: Provider | str | None = None) -> ClusterFile:
    """Read and check a cluster file. The call accesses no other storage, but resolves symbolic links. ``path`` may
    be an address; the storage options then come from the environment. ``credentials`` is a provider
    (``stratalog.partitions.store.credentials``) or its name, for all roots and the file; None: the provider that
    ``$STRATALOG_CREDENTIALS`` names, if set.

    Raises: InvalidCallError naming the file, the place in it, and the remedy; StorageError kinds for a bucket.
    """
    place = place_of(path, provider_of(credentials, os.environ))
    try:
        tables = tomllib.loads(place.read())
    except (ValueError, RecursionError) as error:  # invalid TOML or UTF-8, or a number with thousands of digits
        raise InvalidCallError(f"cluster file {place} is not valid TOML: {error}") from error
    return _ClusterFileReader(place).read(tables)


class _ClusterFileReader:
    """Converts the tables of one file. Its errors name the file."""

    def __init__(self, place: FilePlace) -> None:
        self._place = place

    def read(self, tables: Mapping[str, Any]) -> ClusterFile:
        self._refuse_secrets(tables)
        if "configs" in tables:
            raise self._error("configs", "configs are dynamic: set them in the cluster, not in this file")
        try:
            checked = msgspec.convert(tables, described(_Tables))
        except msgspec.ValidationError as error:
            raise self._refused(str(error)) from None
        cluster = checked.cluster
        if not _CLUSTER_ID.match(cluster.id):
            raise self._error("cluster.id", f"{cluster.id!r}: use 1 to 64 of a-z A-Z 0-9 . _ -")
        voters = tuple(cluster.voters)
        even = f"{len(voters)} voters: an even number tolerates no more losses than one voter fewer"
        storage = StorageTables(
            {kind: tables.get(kind, {}) for kind in TABLES},
            self._place.provider,
            names_providers=not self._place.in_bucket,
        )
        for kind, scheme in (("s3", "s3"), ("azure", "az"), ("gcs", "gs")):
            self._options(storage, f"{scheme}://", None, kind)
        remote = None if cluster.remote is None else self._address(cluster.remote, "cluster.remote")
        own = checked.remote.storage if checked.remote is not None else None
        if remote is None and own is not None:
            raise self._error("remote.storage", "this table needs cluster.remote, which is missing")
        remote_storage = self._options(storage, remote or "file://", own, "remote.storage")
        if remote is not None and not remote.startswith("s3://"):
            for key in ("kms_key_id", "encryption_scope"):
                if getattr(remote_storage, key) is not None:
                    raise self._error(
                        "remote.storage",
                        f"{key} is not possible here: delta-rs, which writes the tables' logs, cannot name a key "
                        "to this storage. Make the key the default of the bucket or container, and name it only "
                        "for brokers",
                    )
        file = ClusterFile(
            path=str(self._place),
            cluster_id=cluster.id,
            remote=remote,
            voters=voters,
            brokers=self._brokers(checked.brokers, storage),
            remote_storage=remote_storage,
            storage=storage,
            cache=self._cache(cluster.cache),
            client_rack=cluster.client_rack,
            warnings=(even,) if len(voters) % 2 == 0 else (),
        )
        known = {broker.broker_id for broker in file.brokers}
        if not known.issuperset(voters) or len(set(voters)) != len(voters):
            raise self._error(
                "cluster.voters", f"{list(voters)}: name one or more of the brokers {sorted(known)}, each once"
            )
        try:
            check_roots(
                [(f"broker {broker.broker_id}", broker.log_dir, broker.storage) for broker in file.brokers]
                + ([] if remote is None else [("the remote tier", remote, file.remote_storage)])
            )
        except EnvironmentUnusableError:
            raise
        except InvalidCallError as error:
            raise self._error("brokers", str(error)) from None
        return file

    def _brokers(self, entries: Sequence[_BrokerTable], storage: StorageTables) -> tuple[BrokerEntry, ...]:
        brokers: dict[int, BrokerEntry] = {}
        for index, entry in enumerate(entries):
            if entry.id in brokers:
                raise self._error(
                    f"brokers[{index}].id", f"{entry.id} is used by two brokers: give each its own id"
                )
            address = self._address(entry.log_dir, f"brokers[{index}].log_dir")
            options = self._options(storage, address, entry.storage, f"brokers[{index}].storage")
            brokers[entry.id] = BrokerEntry(entry.id, entry.rack, address, options)
        return tuple(brokers.values())

    def _options(
        self, storage: StorageTables, address: str, own: Mapping[str, Any] | None, place: str
    ) -> StoreOptions:
        try:
            return storage.options(address, own)
        except InvalidCallError as error:
            raise self._error(place, str(error)) from None
        except msgspec.ValidationError as error:
            raise self._refused(str(error), place) from None

    def _cache(self, text: str | None) -> Path | None:
        if text is None:
            return None
        parse_folder(text, self._named("cluster.cache"))
        if text[0] in "~$":
            raise self._error("cluster.cache", _NOT_EXPANDED)
        if self._place.in_bucket and not text.startswith("/"):
            raise self._error("cluster.cache", f"{text!r}: this file is in a bucket: write an absolute path")
        return Path(os.path.normpath(text if self._place.in_bucket else os.path.join(self._place.folder, text)))

    # ---------------------------------------------------------------------------- addresses

    def _address(self, text: str, place: str) -> str:
        """Return the absolute address of a root, without a trailing slash, ``..`` or a secret."""
        address = parse_address(text, self._named(place))
        if not address.is_folder:
            return str(address)
        folder = address.path
        if not folder or folder[0] in "~$":
            raise self._error(place, _NOT_EXPANDED)
        if self._place.in_bucket and not folder.startswith("/"):
            root = self._place.address
            below = os.path.normpath(f"/{root.path.rpartition('/')[0]}/{folder}").strip("/")
            return str(Address(root.scheme, root.host, below))
        return "file://" + os.path.normpath(os.path.join(self._place.folder, folder))

    # -------------------------------------------------------------------------------- errors

    def _error(self, place: str, what: str) -> InvalidCallError:
        return InvalidCallError(f"{self._named(place)}: {what}")

    def _named(self, place: str) -> str:
        return f"cluster file {self._place}, {place}"

    def _refused(self, message: str, table: str = "") -> InvalidCallError:
        """Return msgspec's error message with the place of the error, as in "Expected `int`, got `str` - at
        `$.brokers[1].id`".
        """
        what, _, inside = message.replace("`", "").partition(" - at $")
        place = (table + inside).strip(".")
        if unknown := re.fullmatch(r"Object contains unknown field (.+)", what):
            known = _BY_PLACE.get(place.partition("[")[0] if place.endswith("]") else place)
            there = "" if known is None else f"; the keys are {', '.join(known.__struct_fields__)}"
            what = f"unknown key {unknown[1]!r}{did_you_mean(unknown[1], _KEYS) or there}"
        elif missing := re.fullmatch(r"Object missing required field (.+)", what):
            what = f"{missing[1]} is missing{_TO_ADD.get((place.partition('[')[0], missing[1]), '')}"
        return self._error(place or "top level", what)

    def _refuse_secrets(self, node: Any, place: str = "") -> None:
        if isinstance(node, Mapping):
            for key, value in node.items():
                if _SECRET.search(key) and not (key == "credentials" and place.rpartition(".")[2] in _STORAGE):
                    raise self._error(
                        place or "top level",
                        f"{key} looks like a secret: a cluster file must not contain secrets; {NO_SECRETS}",
                    )
                self._refuse_secrets(value, f"{place}.{key}".strip("."))
        elif isinstance(node, list):
            for index, value in enumerate(node):
                self._refuse_secrets(value, f"{place}[{index}]")


Root = tuple[str, str, StoreOptions]
"""The owner of a root, its address, and its store options."""


def check_roots(roots: Sequence[Root]) -> None:
    """Check three things: no root equals or contains another root, no address names two buckets, and Python
    imports from no root.

    Raises: InvalidCallError; EnvironmentUnusableError if Python imports from a root.
    """
    resolved = [(who, _resolved(address)) for who, address, _ in roots]
    _check_code_apart(resolved)
    for index, (who, root) in enumerate(resolved):
        for other, other_root in resolved[:index]:
            if f"{root}/".startswith(f"{other_root}/") or f"{other_root}/".startswith(f"{root}/"):
                raise InvalidCallError(
                    f"{other} and {who} share storage ({other_root} and {root}); give each a folder that is not "
                    "inside another's"
                )
    seen: dict[str, StoreOptions] = {}
    for _, address, options in roots:
        bucket = "/".join(address.split("/", 3)[:3])
        before = seen.setdefault(bucket, options)
        if (before.endpoint_url, before.account) != (options.endpoint_url, options.account):
            raise InvalidCallError(
                f"{bucket} exists on two servers or accounts, but Spark distinguishes buckets only by name: "
                "rename one"
            )


def _resolved(address: str) -> str:
    """Return the address with symbolic links resolved, so that a folder has only one name."""
    scheme, _, rest = address.partition("://")
    return f"file://{os.path.realpath(rest)}" if scheme == "file" else address


def _check_code_apart(roots: Sequence[tuple[str, str]]) -> None:
    """Check that no root contains a folder from which Python imports. Also check the working folder, because
    Spark's workers import from it.

    Raises: EnvironmentUnusableError.
    """
    for folder in ("", *sys.path):
        with suppress(OSError):  # the working folder may have been deleted
            resolved = os.path.realpath(folder)
            for who, root in roots:
                if f"file://{resolved}/".startswith(f"{root.rstrip('/')}/"):
                    raise EnvironmentUnusableError(
                        f"Python imports from {resolved}, which is storage of {who}: anyone who can write there "
                        "could run code here. Start this process in another folder, and remove the storage from "
                        "sys.path and PYTHONPATH"
                    )

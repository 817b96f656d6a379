"""``cluster.toml``: which brokers there are and how to reach them. Never a secret, never a config.

    [cluster]                       [[brokers]]                  [s3]                      (optional)
    id = "flights"                  id = 1                       endpoint_url = "https://s3.example.org"
    remote = "s3://lake/flights"    rack = "a"       (optional)  region = "eu-central-1"
    voters = [1]                    log_dir = "brokers/1"        profile = "log"
    cache = "cache"   (optional)
    client_rack = "a" (optional)

Relative folders are relative to the file's own. Credentials come from the environment, a profile or the
machine; configs (``retention.ms`` ...) are in the cluster's metadata, where every driver sees the same.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from partitions.errors import InvalidCallError
from partitions.store.opening import instead_of, scheme_of
from partitions.store.protocol import StoreOptions

_CLUSTER_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_SECRET = re.compile(r"secret|password|passwd|token|access_?key|credential", re.IGNORECASE)
_OPTIONS = {field.name: type(field.default) for field in fields(StoreOptions) if field.compare} | {
    "endpoint_url": str,
    "region": str,
    "profile": str,
    "exclusive_multipart": bool,
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """One broker: where its storage is."""

    broker_id: int
    rack: str | None
    log_dir: str
    """The address of its root, absolute: ``file:///...`` or ``s3://...``."""


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A cluster file, checked."""

    path: str
    cluster_id: str
    remote: str | None
    """The address of the remote tier, absolute; None: nothing can be tiered."""
    voters: tuple[int, ...]
    """Brokers that hold the metadata."""
    brokers: tuple[BrokerEntry, ...]
    store_options: StoreOptions
    cache: Path | None = None
    """A folder of this machine in which the metadata is remembered between runs; None: it is not."""
    client_rack: str | None = None
    """Where readers are that do not say it themselves; see ``engine.reading.client``."""
    warnings: tuple[str, ...] = ()
    """What is allowed, and probably not meant."""

    def broker(self, broker_id: int) -> BrokerEntry | None:
        """The entry of a broker, None when the file does not name it."""
        return next((broker for broker in self.brokers if broker.broker_id == broker_id), None)


def load_cluster_file(path: str | Path) -> ClusterFile:
    """Read and check a cluster file; touches no storage but to resolve symbolic links.

    Raises: InvalidCallError naming the file, the place in it, and what to do.
    """
    file = Path(path).absolute()
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidCallError(f"cluster file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidCallError(f"cluster file {file} is not valid TOML: {error}") from error
    return _Reader(file).read(tables)


class _Reader:
    """Turns the tables of one file into values; knows the file's name for its errors."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self, tables: Mapping[str, Any]) -> ClusterFile:
        self._refuse_secrets(tables, "")
        if "configs" in tables:
            raise self._error("[configs]", "configs are not set here, but in the cluster: they are dynamic")
        self._check_keys(tables, {"cluster", "brokers", "s3"}, "")
        cluster = self._table(tables, "cluster")
        self._check_keys(cluster, {"id", "remote", "voters", "cache", "client_rack"}, "[cluster]")
        cluster_id = self._need(cluster, "id", str, "[cluster]")
        if not _CLUSTER_ID.match(cluster_id):
            raise self._error("[cluster]", f"id = {cluster_id!r}: use 1 to 64 of a-z A-Z 0-9 . _ -")
        remote = self._optional(cluster, "remote", str, "[cluster]")
        cache = self._optional(cluster, "cache", str, "[cluster]")
        if cache is not None and (cache[0] in "~$" or scheme_of(cache) is not None):
            raise self._error("[cluster]", f"cache = {cache!r}: write the path of a folder of this machine")
        brokers = self._brokers(tables.get("brokers"))
        voters = self._voters(cluster, {broker.broker_id for broker in brokers})
        even = f"{len(voters)} voters: an even number survives no more losses than one voter less"
        file = ClusterFile(
            path=str(self._file),
            cluster_id=cluster_id,
            remote=None if remote is None else self._address(remote, "[cluster] remote"),
            voters=voters,
            brokers=brokers,
            store_options=self._store_options(self._table(tables, "s3", needed=False)),
            cache=None if cache is None else Path(os.path.normpath(self._file.parent / cache)),
            client_rack=self._optional(cluster, "client_rack", str, "[cluster]"),
            warnings=(even,) if len(voters) % 2 == 0 else (),
        )
        self._check_apart(file)
        return file

    def _brokers(self, entries: Any) -> tuple[BrokerEntry, ...]:
        if not isinstance(entries, list) or not entries or not all(isinstance(e, dict) for e in entries):
            raise self._error("[[brokers]]", "at least one broker is needed, each in a table [[brokers]]")
        brokers: dict[int, BrokerEntry] = {}
        for number, entry in enumerate(entries, start=1):
            place = f"[[brokers]] number {number}"
            self._check_keys(entry, {"id", "rack", "log_dir"}, place)
            broker_id = self._need(entry, "id", int, place)
            if broker_id < 0 or broker_id in brokers:
                raise self._error(place, f"id = {broker_id}: ids are 0 or more, and each broker has its own")
            brokers[broker_id] = BrokerEntry(
                broker_id=broker_id,
                rack=self._optional(entry, "rack", str, place),
                log_dir=self._address(self._need(entry, "log_dir", str, place), f"{place} log_dir"),
            )
        return tuple(brokers.values())

    def _voters(self, cluster: Mapping[str, Any], brokers: Collection[int]) -> tuple[int, ...]:
        voters = self._need(cluster, "voters", list, "[cluster]")
        unknown = [voter for voter in voters if type(voter) is not int or voter not in brokers]
        if unknown or not voters or len(set(voters)) != len(voters):
            raise self._error(
                "[cluster]",
                f"voters = {voters}: name one or more of the brokers {sorted(brokers)}, each once",
            )
        return tuple(voters)

    def _store_options(self, table: Mapping[str, Any]) -> StoreOptions:
        self._check_keys(table, _OPTIONS.keys(), "[s3]")
        given = {
            key: self._need(table, key, (int, float) if kind is float else kind, "[s3]")
            for key, kind in _OPTIONS.items()
            if key in table
        }
        if any(isinstance(value, (int, float)) and value is not False and value <= 0 for value in given.values()):
            raise self._error("[s3]", "numbers must be above 0")
        endpoint = given.get("endpoint_url", "")
        if "@" in urlsplit(str(endpoint)).netloc:
            raise self._error("[s3]", "endpoint_url holds a user or password; credentials never stand in a file")
        return StoreOptions(**given)

    # ---------------------------------------------------------------------------- addresses

    def _address(self, text: str, place: str) -> str:
        """The absolute address of a root: no trailing slash, no ``..``."""
        scheme, separator, rest = text.partition("://")
        named = scheme_of(text)
        if named is not None and (not separator or scheme not in ("file", "s3", "memory")):
            raise self._error(place, f"{text!r}: {instead_of(named)}")
        if separator and scheme != "file":
            if not rest.strip("/"):
                raise self._error(place, f"{text!r}: use a folder, file:///folder or s3://bucket/prefix")
            return f"{scheme}://{rest.strip('/')}"
        folder = rest if separator else text
        if not folder or folder[0] in "~$" or (separator and not folder.startswith("/")):
            raise self._error(place, f"{text!r}: write the folder's path; ~ and $ are not expanded")
        return "file://" + os.path.normpath(self._file.parent / folder)

    def _check_apart(self, file: ClusterFile) -> None:
        """No root may be, or lie inside, another one."""
        named = [(f"broker {broker.broker_id}", broker.log_dir) for broker in file.brokers]
        if file.remote is not None:
            named.append(("the remote tier", file.remote))
        roots = [(who, _resolved(address)) for who, address in named]
        for index, (who, root) in enumerate(roots):
            for other, other_root in roots[:index]:
                if f"{root}/".startswith(f"{other_root}/") or f"{other_root}/".startswith(f"{root}/"):
                    raise self._error(
                        "[[brokers]]",
                        f"{other} and {who} share storage ({other_root} and {root}); give each a folder that "
                        "is not inside another's",
                    )

    # -------------------------------------------------------------------------------- checks

    def _error(self, place: str, what: str) -> InvalidCallError:
        return InvalidCallError(f"cluster file {self._file}, {place}: {what}" if place else what)

    def _refuse_secrets(self, node: Any, place: str) -> None:
        if isinstance(node, Mapping):
            for key, value in node.items():
                if _SECRET.search(key):
                    raise self._error(
                        place or "top level",
                        f"{key} looks like a secret: secrets never stand in a cluster file; give credentials "
                        "by the environment (AWS_ACCESS_KEY_ID ...) or name a profile",
                    )
                self._refuse_secrets(value, f"[{key}]")
        elif isinstance(node, Sequence) and not isinstance(node, str):
            for value in node:
                self._refuse_secrets(value, place)

    def _check_keys(self, table: Mapping[str, Any], known: Collection[str], place: str) -> None:
        for key in table:
            if key not in known:
                nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(sorted(known))}"
                raise self._error(place or "top level", f"unknown key {key!r}; {hint}")

    def _table(self, tables: Mapping[str, Any], name: str, *, needed: bool = True) -> Mapping[str, Any]:
        table = tables.get(name, None if needed else {})
        if not isinstance(table, Mapping):
            raise self._error(f"[{name}]", "this table is missing" if table is None else "this must be a table")
        return table

    def _need(self, table: Mapping[str, Any], key: str, kind: type[T] | tuple[type, ...], place: str) -> T:
        value = table.get(key)
        if value is None:
            raise self._error(place, f"{key} is missing")
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kind) or value == "":
            names = " or ".join(_KIND_NAMES[one] for one in kinds)
            raise self._error(place, f"{key} = {value!r}: this takes {names}")
        return cast(T, value)

    def _optional(self, table: Mapping[str, Any], key: str, kind: type[T], place: str) -> T | None:
        return self._need(table, key, kind, place) if key in table else None


_KIND_NAMES: Mapping[type, str] = {
    str: "a text that is not empty",
    int: "a whole number",
    float: "a number",
    list: "a list",
    bool: "true or false",
}


def _resolved(address: str) -> str:
    """The address with symbolic links followed, so that one folder has one name."""
    scheme, _, rest = address.partition("://")
    return f"file://{os.path.realpath(rest)}" if scheme == "file" else address

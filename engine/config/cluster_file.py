"""``cluster.toml``: which brokers there are and how to reach them. Never a secret, never a config.

    [cluster]                       [[brokers]]                  [s3]                      (optional)
    id = "flights"                  id = 1                       endpoint_url = "https://s3.example.org"
    remote = "s3://lake/flights"    rack = "a"       (optional)  region = "eu-central-1"
    voters = [1]                    log_dir = "brokers/1"        profile = "log"
    cache = "cache"   (optional)
    client_rack = "a" (optional)

Roots are folders, ``s3://``, ``gs://``, ``az://`` or ``abfss://``; of ``[s3]``, ``timeout_s``, ``retries`` and
``part_bytes`` count for all object storage. Relative folders are relative to the file's own. Credentials come from
the environment, a profile or the machine; configs (``retention.ms`` ...) are in the cluster's metadata, where
every driver sees the same.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError
from stratalog.partitions.spelling import did_you_mean
from stratalog.partitions.store.opening import EXAMPLES, NO_SECRETS, SCHEMES, holds_secret, instead_of, scheme_of
from stratalog.partitions.store.protocol import StoreOptions

_CLUSTER_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_SECRET = re.compile(r"secret|password|passwd|token|access_?key|credential", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """One broker: where its storage is."""

    broker_id: int
    rack: str | None
    log_dir: str
    """The address of its root, absolute: ``file:///...``, ``s3://...``, ``gs://...``, ``az://...`` or ``abfss://...``."""


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
    """Where readers are that do not say it themselves; see ``stratalog.engine.reading.client``."""
    warnings: tuple[str, ...] = ()
    """Values that are allowed, and probably not meant."""

    def broker(self, broker_id: int) -> BrokerEntry | None:
        """The entry of a broker, None when the file does not name it."""
        return next((broker for broker in self.brokers if broker.broker_id == broker_id), None)


_Text = Annotated[str, Meta(min_length=1)]


class _Table(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. Only what may be left out has a default."""


class _ClusterTable(_Table):
    id: _Text
    voters: Annotated[list[int], Meta(min_length=1)]
    remote: _Text | None = None
    cache: _Text | None = None
    client_rack: _Text | None = None


class _BrokerTable(_Table):
    id: Annotated[int, Meta(ge=0)]
    log_dir: _Text
    rack: _Text | None = None


class _S3Table(_Table):
    """Of ``StoreOptions``, whose defaults count."""

    endpoint_url: _Text | None = None
    region: _Text | None = None
    profile: _Text | None = None
    timeout_s: Annotated[float, Meta(gt=0)] = 1
    retries: Annotated[int, Meta(ge=1)] = 1
    part_bytes: Annotated[int, Meta(ge=1)] = 1
    exclusive_multipart: bool | None = None


class _Tables(_Table):
    cluster: _ClusterTable
    brokers: Annotated[list[_BrokerTable], Meta(min_length=1)]
    s3: _S3Table | None = None


_KEYS = {name for table in (_Tables, _ClusterTable, _BrokerTable, _S3Table) for name in table.__struct_fields__}


def load_cluster_file(path: str | Path) -> ClusterFile:
    """Read and check a cluster file; touches no storage but to resolve symbolic links.

    Raises: InvalidCallError naming the file, the place in it, and what to do.
    """
    file = Path(path).absolute()
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidCallError(f"cluster file {file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, a number of thousands of digits
        raise InvalidCallError(f"cluster file {file} is not valid TOML: {error}") from error
    return _ClusterFileReader(file).read(tables)


class _ClusterFileReader:
    """Turns the tables of one file into values; knows the file's name for its errors."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self, tables: Mapping[str, Any]) -> ClusterFile:
        self._refuse_secrets(tables)
        if "configs" in tables:
            raise self._error("configs", "configs are not set here, but in the cluster: they are dynamic")
        try:
            checked = msgspec.convert(tables, _Tables)
        except msgspec.ValidationError as error:
            raise self._refused(str(error)) from None
        cluster = checked.cluster
        if not _CLUSTER_ID.match(cluster.id):
            raise self._error("cluster.id", f"{cluster.id!r}: use 1 to 64 of a-z A-Z 0-9 . _ -")
        if cluster.cache is not None and (cluster.cache[0] in "~$" or scheme_of(cluster.cache) is not None):
            raise self._error("cluster.cache", f"{cluster.cache!r}: write the path of a folder of this machine")
        voters = tuple(cluster.voters)
        even = f"{len(voters)} voters: an even number survives no more losses than one voter less"
        file = ClusterFile(
            path=str(self._file),
            cluster_id=cluster.id,
            remote=None if cluster.remote is None else self._address(cluster.remote, "cluster.remote"),
            voters=voters,
            brokers=self._brokers(checked.brokers),
            store_options=StoreOptions(**tables.get("s3", {})),
            cache=None if cluster.cache is None else Path(os.path.normpath(self._file.parent / cluster.cache)),
            client_rack=cluster.client_rack,
            warnings=(even,) if len(voters) % 2 == 0 else (),
        )
        if holds_secret(file.store_options.endpoint_url or ""):
            raise self._error("s3.endpoint_url", f"it holds credentials, as an address may not; {NO_SECRETS}")
        known = {broker.broker_id for broker in file.brokers}
        if not known.issuperset(voters) or len(set(voters)) != len(voters):
            raise self._error(
                "cluster.voters", f"{list(voters)}: name one or more of the brokers {sorted(known)}, each once"
            )
        self._check_apart(file)
        return file

    def _brokers(self, entries: Sequence[_BrokerTable]) -> tuple[BrokerEntry, ...]:
        brokers: dict[int, BrokerEntry] = {}
        for index, entry in enumerate(entries):
            if entry.id in brokers:
                raise self._error(f"brokers[{index}].id", f"{entry.id} is another broker's, too: each has its own")
            address = self._address(entry.log_dir, f"brokers[{index}].log_dir")
            brokers[entry.id] = BrokerEntry(entry.id, entry.rack, address)
        return tuple(brokers.values())

    # ---------------------------------------------------------------------------- addresses

    def _address(self, text: str, place: str) -> str:
        """The absolute address of a root: no trailing slash, no ``..``, no secret."""
        if holds_secret(text):
            raise self._error(place, f"it holds credentials, as an address may not; {NO_SECRETS}")
        scheme, separator, rest = text.partition("://")
        named = scheme_of(text)
        if named is not None and (not separator or scheme not in SCHEMES):
            raise self._error(place, f"{text!r}: {instead_of(named)}")
        if separator and scheme != "file":
            if not rest.strip("/"):
                raise self._error(place, f"{text!r}: use a folder, {EXAMPLES}")
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
        _check_code_apart(roots)
        for index, (who, root) in enumerate(roots):
            for other, other_root in roots[:index]:
                if f"{root}/".startswith(f"{other_root}/") or f"{other_root}/".startswith(f"{root}/"):
                    raise self._error(
                        "brokers",
                        f"{other} and {who} share storage ({other_root} and {root}); give each a folder that "
                        "is not inside another's",
                    )

    # -------------------------------------------------------------------------------- errors

    def _error(self, place: str, what: str) -> InvalidCallError:
        return InvalidCallError(f"cluster file {self._file}, {place}: {what}")

    def _refused(self, message: str) -> InvalidCallError:
        """The finding of msgspec, at its place, as in "Expected `int`, got `str` - at `$.brokers[1].id`"."""
        what, _, place = message.replace("`", "").partition(" - at $")
        if unknown := re.fullmatch(r"Object contains unknown field (.+)", what):
            what = f"unknown key {unknown[1]!r}{did_you_mean(unknown[1], _KEYS)}"
        elif missing := re.fullmatch(r"Object missing required field (.+)", what):
            what = f"{missing[1]} is missing"
        return self._error(place.strip(".") or "top level", what)

    def _refuse_secrets(self, node: Any, place: str = "") -> None:
        if isinstance(node, Mapping):
            for key, value in node.items():
                if _SECRET.search(key):
                    raise self._error(
                        place or "top level",
                        f"{key} looks like a secret: secrets never stand in a cluster file; {NO_SECRETS}",
                    )
                self._refuse_secrets(value, f"{place}.{key}".strip("."))
        elif isinstance(node, list):
            for index, value in enumerate(node):
                self._refuse_secrets(value, f"{place}[{index}]")


def _resolved(address: str) -> str:
    """The address with symbolic links followed, so that one folder has one name."""
    scheme, _, rest = address.partition("://")
    return f"file://{os.path.realpath(rest)}" if scheme == "file" else address


def _check_code_apart(roots: Sequence[tuple[str, str]]) -> None:
    """No folder that Python imports from may be in a root: nor the working folder, from which Spark's workers do.

    Raises: EnvironmentUnusableError.
    """
    for folder in ("", *sys.path):
        with suppress(OSError):  # the working folder may be gone
            resolved = os.path.realpath(folder)
            for who, root in roots:
                if f"file://{resolved}/".startswith(f"{root.rstrip('/')}/"):
                    raise EnvironmentUnusableError(
                        f"Python imports from {resolved}, which is storage of {who}: anybody who may write there "
                        "could run code here. Start this in another folder, and take storage off sys.path and "
                        "PYTHONPATH"
                    )

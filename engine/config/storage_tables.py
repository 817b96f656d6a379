"""Storage options of the roots in a cluster file: a table for each kind of storage, and a table for a single root.

    [s3]                                      [[brokers]]
    region = "eu-central-1"                   id = 2
    credentials = "ops.vault:keys"            log_dir = "s3://elsewhere/broker-2"
                                              [brokers.storage]
    [azure]                                   region = "us-east-1"
    account = "lake"                          profile = "us"

The options of a root come, in this order, from its own table (``[brokers.storage]`` or ``[remote.storage]``), the
table of its kind, the environment or a profile (``partitions.store.resolving``), and the defaults of
``StoreOptions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stratalog.partitions.bounded import described
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.store.credentials import CredentialSource, GivenProvider, NamedProvider, is_function_name
from stratalog.partitions.store.encryption import check_connection
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.partitions.store.resolving import resolved

Text = Annotated[str, Meta(min_length=1)]


class Table(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. Optional keys have a default."""


class _ObjectTable(Table):
    """Keys of ``StoreOptions``, with the same defaults."""

    endpoint_url: Text | None = None
    credentials: Text | None = None
    timeout_s: Annotated[float, Meta(gt=0)] = 1
    retries: Annotated[int, Meta(ge=1)] = 1
    part_bytes: Annotated[int, Meta(ge=1)] = 1
    plain_http: bool = False
    driver: Literal["fsspec"] | None = None
    file_system: Text | None = None


class S3Table(_ObjectTable):
    """Options of ``s3://``."""

    region: Text | None = None
    profile: Text | None = None
    kms_key_id: Text | None = None
    exclusive_multipart: bool | None = None


class AzureTable(_ObjectTable):
    """Options of ``az://`` and ``abfss://``."""

    account: Text | None = None
    encryption_scope: Text | None = None


class GcsTable(_ObjectTable):
    """Options of ``gs://``."""

    kms_key_id: Text | None = None


_KINDS: Mapping[str, str] = {"s3": "s3", "az": "azure", "abfss": "azure", "gs": "gcs"}


def kind_of(address: str) -> str | None:
    """Return the name of the table for the storage at ``address``; None if that is not object storage."""
    scheme, separator, _ = address.partition("://")
    return _KINDS.get(scheme) if separator else None


TABLES: Mapping[str, type[_ObjectTable]] = {"s3": S3Table, "azure": AzureTable, "gcs": GcsTable}
_UNUSED = {
    "kms_key_id": "set the encryption key on the bucket",
    "encryption_scope": "set the encryption key on the container",
    "credentials": "the function finds its options by itself",
    "profile": "the function finds its credentials by itself",
    "exclusive_multipart": "it creates each object with one call",
}
"""Keys that fsspec's calls ignore, each with the remedy."""
_WHO = frozenset({"profile", "credentials"})
"""Keys that select credentials. If a root's own table has any of these keys, all such keys in the common table are
ignored.
"""


class StorageTables:
    """The storage tables of one file."""

    def __init__(
        self,
        common: Mapping[str, Mapping[str, Any]] = {},
        given: NamedProvider | GivenProvider | None = None,
        *,
        names_providers: bool = True,
    ) -> None:
        """``common``: the tables of the file by kind, with checked types. ``given`` overrides the file.
        ``names_providers``: whether the file may name functions to import.
        """
        self._common = common
        self._given = given
        self._names_providers = names_providers

    def options(self, address: str, own: Mapping[str, Any] | None = None) -> StoreOptions:
        """Return the options of the root at ``address``, with its ``own`` table.

        Raises: InvalidCallError for impossible values; msgspec.ValidationError for wrong keys and types.
        """
        scheme, kind = address.partition("://")[0], kind_of(address)
        if kind is None:
            if own is not None:
                raise InvalidCallError("a folder has no storage options")
            return StoreOptions()
        own = own or {}
        msgspec.convert(own, described(TABLES[kind]))
        if scheme == "abfss" and "account" in own:
            raise InvalidCallError("the address already names the account")
        values = dict(self._common.get(kind, {}))
        if (_WHO | {"file_system"}) & own.keys():
            values = {key: value for key, value in values.items() if key not in _WHO}
        values |= own
        _check_driver(kind, values)
        named = values.pop("credentials", None)
        provider = self._given
        if named is not None:
            of_file = self._named(named)
            provider = provider or of_file
        if (function := values.get("file_system")) is not None:
            self._check_function(function)
            provider = None
        source = None if provider is None else CredentialSource(provider, address)
        options = StoreOptions(**values, credentials=source)
        check_connection(options.endpoint_url or "", options)
        return resolved(address, options)

    def _check_function(self, name: str) -> None:
        if self._names_providers and not is_function_name(name):
            raise InvalidCallError(
                "file_system names a function, as package.module:function; it must not contain a secret"
            )
        self._named(name)

    def _named(self, name: str) -> NamedProvider:
        if not self._names_providers:
            raise InvalidCallError(
                "a cluster file in a bucket must not name a function to import, because its writers would choose "
                "the code that runs here: use Cluster.open(credentials=...), --credentials or "
                "STRATALOG_CREDENTIALS"
            )
        return NamedProvider(name)


def _check_driver(kind: str, values: Mapping[str, Any]) -> None:
    """Refuse keys that fsspec's calls would ignore. Raises: InvalidCallError."""
    own_function = "file_system" in values
    if own_function and values.get("driver") is None:
        raise InvalidCallError('file_system needs driver = "fsspec"')
    if values.get("driver") is None or (kind == "s3" and not own_function):
        return
    for key, instead in _UNUSED.items():
        if key in values and (own_function or key in ("kms_key_id", "encryption_scope")):
            raise InvalidCallError(f"{key} has no meaning for this file system of fsspec: {instead}")

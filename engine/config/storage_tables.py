"""How the roots of a cluster file are reached: a table for each kind of storage, and one of a root's own.

    [s3]                                      [[brokers]]
    region = "eu-central-1"                   id = 2
    credentials = "ops.vault:keys"            log_dir = "s3://elsewhere/broker-2"
                                              [brokers.storage]
    [azure]                                   region = "us-east-1"
    account = "lake"                          profile = "us"

A root takes what its own table says, ``[brokers.storage]`` or ``[remote.storage]``, else what the table of its
kind does, else what the environment or a profile names (``partitions.store.resolving``), else the defaults of
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
    """A table of the file. Only what may be left out has a default."""


class _ObjectTable(Table):
    """Of ``StoreOptions``, whose defaults count."""

    endpoint_url: Text | None = None
    credentials: Text | None = None
    timeout_s: Annotated[float, Meta(gt=0)] = 1
    retries: Annotated[int, Meta(ge=1)] = 1
    part_bytes: Annotated[int, Meta(ge=1)] = 1
    plain_http: bool = False
    driver: Literal["fsspec"] | None = None
    file_system: Text | None = None


class S3Table(_ObjectTable):
    """Of ``s3://``."""

    region: Text | None = None
    profile: Text | None = None
    kms_key_id: Text | None = None
    exclusive_multipart: bool | None = None


class AzureTable(_ObjectTable):
    """Of ``az://`` and ``abfss://``."""

    account: Text | None = None
    encryption_scope: Text | None = None


class GcsTable(_ObjectTable):
    """Of ``gs://``."""

    kms_key_id: Text | None = None


_KINDS: Mapping[str, str] = {"s3": "s3", "az": "azure", "abfss": "azure", "gs": "gcs"}


def kind_of(address: str) -> str | None:
    """The name of the table for the storage at ``address``; None for what is no object storage."""
    scheme, separator, _ = address.partition("://")
    return _KINDS.get(scheme) if separator else None


TABLES: Mapping[str, type[_ObjectTable]] = {"s3": S3Table, "azure": AzureTable, "gcs": GcsTable}
_WHO = frozenset({"profile", "credentials"})
"""Keys that each say whose credentials are shown: one of a root's own leaves no other."""


class StorageTables:
    """The storage tables of one file."""

    def __init__(
        self,
        common: Mapping[str, Mapping[str, Any]] = {},
        given: NamedProvider | GivenProvider | None = None,
        *,
        names_providers: bool = True,
    ) -> None:
        """``common``: by kind, as the file has them, of the right types. ``given`` counts before what the file
        says. ``names_providers``: whether the file may name functions to import.
        """
        self._common = common
        self._given = given
        self._names_providers = names_providers

    def options(self, address: str, own: Mapping[str, Any] | None = None) -> StoreOptions:
        """The options of the root at ``address``, with its ``own`` table.

        Raises: InvalidCallError for values that cannot be; msgspec.ValidationError for keys and types.
        """
        scheme, kind = address.partition("://")[0], kind_of(address)
        if kind is None:
            if own is not None:
                raise InvalidCallError("a folder takes no storage options")
            return StoreOptions()
        own = own or {}
        msgspec.convert(own, described(TABLES[kind]))
        if scheme == "abfss" and "account" in own:
            raise InvalidCallError("the address names the account already")
        values = dict(self._common.get(kind, {}))
        if _WHO & own.keys():
            values = {key: value for key, value in values.items() if key not in _WHO}
        values |= own
        named = values.pop("credentials", None)
        provider = self._given
        if named is not None:
            of_file = self._named(named)
            provider = provider or of_file
        if (function := values.get("file_system")) is not None:
            if values.get("driver") is None:
                raise InvalidCallError('file_system needs driver = "fsspec"')
            if named is not None:
                raise InvalidCallError("credentials and file_system: the function finds its own credentials")
            self._check_function(function)
            provider = None
        source = None if provider is None else CredentialSource(provider, address)
        options = StoreOptions(**values, credentials=source)
        check_connection(options.endpoint_url or "", options)
        return resolved(address, options)

    def _check_function(self, name: str) -> None:
        if self._names_providers and not is_function_name(name):
            raise InvalidCallError("file_system names a function, as package.module:function; it holds no secret")
        self._named(name)

    def _named(self, name: str) -> NamedProvider:
        if not self._names_providers:
            raise InvalidCallError(
                "a file in a bucket names no function to import, or its writers would choose what runs here: "
                "give it to Cluster.open(credentials=...), or by --credentials, or by STRATALOG_CREDENTIALS"
            )
        return NamedProvider(name)

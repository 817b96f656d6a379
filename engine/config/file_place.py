"""Where a cluster file lies: on this machine, or in a bucket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stratalog.engine.config.storage_tables import kind_of
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.errors import CorruptionError, InvalidCallError
from stratalog.partitions.identity import random_id
from stratalog.partitions.store.credentials import CredentialSource, GivenProvider, NamedProvider, Provider
from stratalog.partitions.store.opening import (
    NO_SECRETS,
    holds_secret,
    instead_of,
    open_store,
    scheme_of,
)
from stratalog.partitions.store.protocol import StoreOptions

CREDENTIALS_VARIABLE = "STRATALOG_CREDENTIALS"
MOST_BYTES = 1024 * 1024


def provider_of(given: Provider | str | None, environ: Mapping[str, str]) -> NamedProvider | GivenProvider | None:
    """A caller's provider, or that of the environment. Raises: InvalidCallError for a text that is no name."""
    given = given if given is not None else environ.get(CREDENTIALS_VARIABLE) or None
    if given is None or isinstance(given, str):
        return None if given is None else NamedProvider(given)
    return GivenProvider(random_id(), given)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The place of a file, and the provider by which its bucket is reached."""

    given: str
    """As ``same_spelling`` has it."""
    provider: NamedProvider | GivenProvider | None

    def __str__(self) -> str:
        """Its address, or its absolute path."""
        return self.given if self.in_bucket else os.path.abspath(self.given)

    @property
    def scheme(self) -> str:
        """Of its address; empty on this machine."""
        scheme, separator, _ = self.given.partition("://")
        return scheme if separator else ""

    @property
    def in_bucket(self) -> bool:
        """Whether it lies in object storage."""
        return kind_of(self.given) is not None

    @property
    def folder(self) -> str:
        """The folder that it is in: an address, or an absolute path."""
        return str(self).rpartition("/")[0] or "/"

    def read(self) -> str:
        """Its text.

        Raises: InvalidCallError where it is not, or for an address that nobody can read; UnicodeDecodeError;
            StorageError kinds.
        """
        if not self.in_bucket:
            named = scheme_of(self.given)
            if self.scheme or (named is not None and not os.path.exists(self.given)):
                raise InvalidCallError(f"cluster file {self.given!r}: {instead_of(named or self.scheme)}")
            try:
                return Path(str(self)).read_text(encoding="utf-8")
            except OSError as error:
                raise InvalidCallError(f"cluster file {self} cannot be read: {error.strerror}") from error
        if holds_secret(self.given):
            raise InvalidCallError(f"the address of the cluster file holds credentials: {NO_SECRETS}")
        name = str(self).rpartition("/")[2]
        if not name or self.folder.endswith(":/"):
            raise InvalidCallError(f"cluster file {self}: name the file, as in s3://bucket/cluster.toml")
        source = None if self.provider is None else CredentialSource(self.provider, self.folder)
        store = open_store(self.folder, StoreOptions(credentials=source))
        try:
            return read_bounded(store, name, MOST_BYTES).decode()
        except FileNotFoundError as error:
            raise InvalidCallError(f"cluster file {self} cannot be read: nothing has this name") from error
        except CorruptionError as error:
            raise InvalidCallError(
                f"cluster file {self} cannot be read: it has more than {MOST_BYTES} bytes"
            ) from error

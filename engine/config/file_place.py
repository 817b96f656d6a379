"""The location of a cluster file: on this machine, or in a bucket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.errors import CorruptionError, InvalidCallError
from stratalog.partitions.identity import random_id
from stratalog.partitions.store.address import Address, parse_address
from stratalog.partitions.store.credentials import CredentialSource, GivenProvider, NamedProvider, Provider
from stratalog.partitions.store.opening import open_store
from stratalog.partitions.store.protocol import StoreOptions

CREDENTIALS_VARIABLE = "STRATALOG_CREDENTIALS"
MOST_BYTES = 1024 * 1024


def provider_of(given: Provider | str | None, environ: Mapping[str, str]) -> NamedProvider | GivenProvider | None:
    """Return the caller's provider, or the provider that the environment names. Raises: InvalidCallError for an
    invalid name.
    """
    given = given if given is not None else environ.get(CREDENTIALS_VARIABLE) or None
    if given is None or isinstance(given, str):
        return None if given is None else NamedProvider(given)
    return GivenProvider(random_id(), given)


def place_of(path: str | os.PathLike[str], provider: NamedProvider | GivenProvider | None) -> FilePlace:
    """Return the location of a cluster file, given its path or address.

    Raises: InvalidCallError for another type, or an invalid address. The message does not repeat the address,
        because it may contain a secret.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidCallError(
            f"the cluster file is a path or an address, not of type {type(path).__name__}: pass it first, and the "
            'Spark session after it, as in Cluster.open("cluster.toml", spark)'
        )
    given = os.fspath(path)
    if "://" not in given and os.path.exists(given):  # a file name may contain a colon
        given = os.path.abspath(given)
    address = parse_address(given, "the cluster file")
    if not address.is_folder and (not address.path or given.endswith("/")):
        raise InvalidCallError(f"cluster file {address}: name the file, as in s3://bucket/cluster.toml")
    return FilePlace(address, provider)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The location of a file, and the credential provider for its bucket."""

    address: Address
    provider: NamedProvider | GivenProvider | None

    def __str__(self) -> str:
        """Return the address, or the absolute path, of the file."""
        return str(self.address) if self.in_bucket else os.path.abspath(self.address.path)

    @property
    def in_bucket(self) -> bool:
        """Whether the file is in object storage."""
        return not self.address.is_folder

    @property
    def folder(self) -> str:
        """The folder of the file: an address, or an absolute path."""
        return str(self).rpartition("/")[0] or "/"

    def read(self) -> str:
        """Return the text of the file.

        Raises: InvalidCallError if the file does not exist; UnicodeDecodeError; StorageError kinds.
        """
        if not self.in_bucket:
            try:
                return Path(str(self)).read_text(encoding="utf-8")
            except OSError as error:
                raise InvalidCallError(
                    f"cluster file {self} cannot be read: {error.strerror}; give its path (a job: --cluster FILE, "
                    "or STRATALOG_CLUSTER)"
                ) from error
        source = None if self.provider is None else CredentialSource(self.provider, self.folder)
        store = open_store(self.folder, StoreOptions(credentials=source))
        try:
            return read_bounded(store, str(self).rpartition("/")[2], MOST_BYTES).decode()
        except FileNotFoundError as error:
            raise InvalidCallError(f"cluster file {self} cannot be read: no object has this name") from error
        except CorruptionError as error:
            raise InvalidCallError(
                f"cluster file {self} cannot be read: it has more than {MOST_BYTES} bytes"
            ) from error

"""How Delta reaches a store: addresses, connection options, and errors in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from stratalog.partitions.errors import (
    InvalidCallError,
    Right,
    StorageAuthenticationError,
    StorageAuthorizationError,
    StorageRefusedError,
    UnsupportedStoreError,
)
from stratalog.partitions.store.address import OBJECT_SCHEMES
from stratalog.partitions.store.credentials import NoCredentialsFoundError
from stratalog.partitions.store.local_rights import refusal
from stratalog.partitions.store.protocol import Store, StoreOptions
from stratalog.partitions.store.requests import FULL, FULL_CODES
from stratalog.partitions.unwritable import UnwritableStorageError

if TYPE_CHECKING:
    import botocore.session

_COLOURS = re.compile(r"\x1b\[\d*m")
_ERRNO = re.compile(r"\(os error (\d+)\)|\bOs \{ code: (\d+)")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_BODY = re.compile(r"<(\?xml|Error|html).*", re.DOTALL | re.IGNORECASE)


def table_uri(store: Store, folder: str) -> str:
    """The address of the table in ``folder``, as Delta takes it: a plain path, or one of object storage.

    Raises: UnsupportedStoreError for a store that no other process can read; InvalidCallError for a
        folder that Delta would misread.
    """
    uri = store.uri_of(folder)
    scheme = uri.partition("://")[0]
    if scheme == "s3" or scheme in OBJECT_SCHEMES:
        return uri
    if scheme != "file":
        raise UnsupportedStoreError(
            f"the remote tier cannot be {store.uri}: a Delta table needs a folder or object storage"
        )
    path = uri.removeprefix("file://")  # taken literally, here as in delta-rs
    if "%" in path or "\\" in path:
        raise InvalidCallError(
            f"the remote tier cannot be {store.uri}: delta-rs misreads '%' and '\\' in the path of a table"
        )
    return path


def storage_options(uri: str, options: StoreOptions) -> dict[str, str]:
    """Delta's storage options, made for one call and never kept: on object storage they hold credentials, found as
    the store finds them (provider, environment, profile, instance).

    Raises: StorageAuthenticationError.
    """
    scheme = uri.partition("://")[0]
    if scheme != "s3" and scheme not in OBJECT_SCHEMES:
        return {}
    found = {
        "timeout": f"{options.timeout_s:g}s",
        "max_retries": str(options.retries),
        "retry_timeout": f"{options.timeout_s * (options.retries + 1):g}s",
    }
    if scheme in OBJECT_SCHEMES:
        from stratalog.partitions.store.object_fsspec import delta_options

        return found | delta_options(uri, options)
    session = _session(options)
    region = options.region or session.get_config_variable("region")
    if region:
        found["AWS_REGION"] = region
    if options.endpoint_url is not None:
        found["AWS_ENDPOINT_URL"] = options.endpoint_url
        if options.endpoint_url.startswith("http://"):
            found["AWS_ALLOW_HTTP"] = "true"
    if options.kms_key_id is not None:
        found |= {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": options.kms_key_id}
    credentials = session.get_credentials()
    if credentials is not None:
        try:
            frozen = credentials.get_frozen_credentials()
        except NoCredentialsFoundError as error:
            raise StorageAuthenticationError(f"open the table {uri}: {error}") from None
        found["AWS_ACCESS_KEY_ID"] = frozen.access_key
        found["AWS_SECRET_ACCESS_KEY"] = frozen.secret_key
        if frozen.token:
            found["AWS_SESSION_TOKEN"] = frozen.token
    return found


@lru_cache(maxsize=16)  # a session reads files; its credentials renew themselves
def _session(options: StoreOptions) -> botocore.session.Session:
    from stratalog.partitions.store.s3_session import s3_session  # here, for tables in folders have no use for it

    return s3_session(options)


@contextmanager
def panics() -> Iterator[None]:
    """Where delta-rs panics, Python gets a BaseException: an error of Delta's instead."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise DeltaError(f"delta-rs gave up: {error}") from None


def refusal_of(error: Exception, right: Right, what: str, uri: str) -> StorageRefusedError | None:
    """The error, in the words ``what``, where the caller lacks the ``right`` on a table, or the storage takes no
    writes; None for all others. Delta's errors tell it by their text alone: the number of the system's error, the
    code of the server's answer, or what object_store says in its place.
    """
    text = str(error)
    number, code = _ERRNO.search(text), _CODE.search(text)
    lacks_right = f"{what}: let its owner {right} there"
    if number is not None:
        told = refusal(right, uri, what, int(number[1] or number[2]))
        if isinstance(told, StorageAuthorizationError):
            return StorageAuthorizationError(lacks_right, right, uri)
        return told if isinstance(told, StorageRefusedError) else None
    if code is not None and code[1] in FULL_CODES:
        return UnwritableStorageError(f"{what}: {FULL}", uri, full=True)
    if "lacked the necessary privileges" in text or (code is not None and code[1] == "AccessDenied"):
        return StorageAuthorizationError(lacks_right, right, uri)
    return None


def is_catalog_managed(error: Exception) -> bool:
    """Whether delta-rs does not open the table because its catalog commits to it (the features catalogManaged and
    catalogOwned-preview): it wants to be told the catalog's version.
    """
    return "catalog-managed table" in str(error)


def said(error: Exception) -> str:
    """The text of Delta's error, in one line without the server's answer: S3 echoes session tokens in it, so the
    original must not be chained either.
    """
    text = _COLOURS.sub("", str(error))
    code = _CODE.search(text)
    text = " ".join(_BODY.sub("", text).replace("↳", ":").split())
    return f"{text} ({code[1]})" if code else text

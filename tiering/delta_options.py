"""How Delta reaches a store: addresses, connection options, and translated errors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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
from stratalog.partitions.store.local_rights import refusal
from stratalog.partitions.store.protocol import Store, StoreOptions
from stratalog.partitions.store.reached import Reached, reached
from stratalog.partitions.store.requests import FULL, FULL_CODES
from stratalog.partitions.store.resolving import REGION_OF_OTHERS
from stratalog.partitions.unwritable import UnwritableStorageError

_COLOURS = re.compile(r"\x1b\[\d*m")
_ERRNO = re.compile(r"\(os error (\d+)\)|\bOs \{ code: (\d+)")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_AZURE_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_BODY = re.compile(r"<(\?xml|Error|html).*", re.DOTALL | re.IGNORECASE)


def table_uri(store: Store, folder: str) -> str:
    """The address of the table in ``folder`` for Delta: a plain path, or an object storage URI.

    Raises: UnsupportedStoreError for a store that other processes cannot read; InvalidCallError for a folder that
        Delta would misread.
    """
    uri = store.uri_of(folder)
    scheme = uri.partition("://")[0]
    if scheme == "s3" or scheme in OBJECT_SCHEMES:
        return uri
    if scheme != "file":
        raise UnsupportedStoreError(
            f"the remote tier cannot be {store.uri}: a Delta table needs a folder or object storage"
        )
    path = uri.removeprefix("file://")  # taken literally, both here and by delta-rs
    if "%" in path or "\\" in path:
        raise InvalidCallError(
            f"the remote tier cannot be {store.uri}: delta-rs misreads '%' and '\\' in the path of a table"
        )
    return path


def storage_options(uri: str, options: StoreOptions) -> dict[str, str]:
    """Delta's storage options. Make them for one call and never store them, because they contain credentials.

    Raises: StorageAuthenticationError; UnsupportedStoreError for a variable that delta-rs would mix with these
        options.
    """
    scheme = uri.partition("://")[0]
    if scheme != "s3" and scheme not in OBJECT_SCHEMES:
        return {}
    here = reached(uri, options)
    _refuse_others(here, os.environ)
    return delta_storage_options(here)


def delta_storage_options(here: Reached) -> dict[str, str]:
    """All settings that delta-rs would otherwise read from its environment: server, region, addressing, TLS,
    credentials.

    Raises: StorageAuthenticationError for a Google token.
    """
    options = here.options
    found = {
        "timeout": f"{options.timeout_s:g}s",
        "max_retries": str(options.retries),
        "retry_timeout": f"{options.timeout_s * (options.retries + 1):g}s",
    }
    if here.scheme == "s3":
        return found | _of_s3(here)
    return found | (_of_google(here) if here.scheme == "gs" else _of_azure(here))


def _of_s3(here: Reached) -> dict[str, str]:
    options, shown = here.options, here.shown
    found = {
        "AWS_ENDPOINT_URL": here.server,
        "AWS_ENDPOINT_URL_S3": here.server,  # takes precedence over AWS_ENDPOINT_URL
        "AWS_ALLOW_HTTP": _spelt(here.plain),
        "AWS_REGION": options.region or REGION_OF_OTHERS,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        "AWS_SKIP_SIGNATURE": "false",
        "AWS_CONDITIONAL_PUT": "etag",
        "AWS_ACCESS_KEY_ID": shown["access_key"],
        "AWS_SECRET_ACCESS_KEY": shown["secret_key"],
    }
    if "token" in shown:
        found["AWS_SESSION_TOKEN"] = shown["token"]
    if options.kms_key_id is not None:
        found |= {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": options.kms_key_id}
    return found


def _of_azure(here: Reached) -> dict[str, str]:
    found = {
        "azure_storage_account_name": str(here.options.account),
        "azure_storage_endpoint": here.server,
        "azure_allow_http": _spelt(here.plain),
        "azure_storage_use_emulator": "false",  # otherwise delta-rs uses the emulator's usual port
        "azure_skip_signature": _spelt(not here.shown),
    }
    return found | {f"azure_storage_{name}": value for name, value in here.shown.items()}


def _of_google(here: Reached) -> dict[str, str]:
    if "token" in here.shown and "service_account" not in here.shown:
        raise StorageAuthenticationError(
            f"open a table at {here.server}: {here.options.credentials} gave only a token, but delta-rs, which "
            "writes the remote tier's tables, accepts no token: give a service_account, or no provider if the "
            "machine has an identity"
        )
    found = {"google_base_url": here.server, "google_allow_http": _spelt(here.plain)}
    if here.plain:  # anonymous: keeps delta-rs from looking for credentials
        anonymous = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        return found | {"google_service_account_key": json.dumps({"gcs_base_url": here.server, **anonymous})}
    names = {
        "service_account": "google_service_account_key",
        "application_credentials": "google_application_credentials",
    }
    return found | {option: here.shown[name] for name, option in names.items() if name in here.shown}


def _refuse_others(here: Reached, environ: Mapping[str, str]) -> None:
    """Refuse environment variables that delta-rs would use for missing settings. (Some settings have no value that
    means *none*, so they must be missing.)"""
    mixed: tuple[str, ...]
    if here.scheme == "s3":
        mixed = () if "token" in here.shown else ("AWS_SESSION_TOKEN", "AWS_TOKEN")
    elif here.scheme == "gs":
        mixed = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY")
    else:
        mixed = _AZURE_KEYS if "sas_token" in here.shown else ()
    for variable in mixed:
        if environ.get(variable):
            raise UnsupportedStoreError(
                f"{variable} is set, but {here.scheme}:// has other credentials: delta-rs, which writes the "
                "remote tier's tables, would use the variable. Unset it for this process"
            )


def _spelt(is_so: bool) -> str:
    return "true" if is_so else "false"


@contextmanager
def panics() -> Iterator[None]:
    """Turns a panic of delta-rs, a BaseException in Python, into a Delta error."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise DeltaError(f"delta-rs failed: {error}") from None


def refusal_of(error: Exception, right: Right, what: str, uri: str) -> StorageRefusedError | None:
    """The error ``what`` if the caller lacks the permission ``right`` on a table, or the storage accepts no
    writes; None for all other errors. Delta's errors show the refusal only in their text: the errno, the status
    code of the server, or a phrase of object_store.
    """
    text = str(error)
    number, code = _ERRNO.search(text), _CODE.search(text)
    lacks_right = f"{what}: its owner must grant you the right to {right} it"
    if number is not None:
        refused = refusal(right, uri, what, int(number[1] or number[2]))
        if isinstance(refused, StorageAuthorizationError):
            return StorageAuthorizationError(lacks_right, right, uri)
        return refused if isinstance(refused, StorageRefusedError) else None
    if code is not None and code[1] in FULL_CODES:
        return UnwritableStorageError(f"{what}: {FULL}", uri, full=True)
    if "lacked the necessary privileges" in text or (code is not None and code[1] == "AccessDenied"):
        return StorageAuthorizationError(lacks_right, right, uri)
    return None


def is_catalog_managed(error: Exception) -> bool:
    """Whether delta-rs refuses the table because a catalog commits to it (the features catalogManaged and
    catalogOwned-preview), so that only the catalog knows the version.
    """
    return "catalog-managed table" in str(error)


def error_text(error: Exception) -> str:
    """The text of Delta's error in one line, without the server's answer. S3's answers echo session tokens, so the
    original error must not be chained either.
    """
    text = _COLOURS.sub("", str(error))
    code = _CODE.search(text)
    text = " ".join(_BODY.sub("", text).replace("↳", ":").split())
    return f"{text} ({code[1]})" if code else text

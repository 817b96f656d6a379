"""Parses addresses of roots, files and servers, wherever they are given. Pure.

An address may contain a secret by mistake: a login, a signature, a connection string. Each kind of address has a
closed alphabet that excludes these; anything else is refused. An error never repeats a refused address. The error
names the place of the address, and the scheme if it is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from stratalog.partitions.errors import UnsupportedStoreError

OBJECT_SCHEMES = ("abfss", "az", "gs")
"""The schemes of object stores that fsspec accesses."""
SCHEMES = ("file", "s3", "memory", *OBJECT_SCHEMES)
"""The schemes of all stores."""
EXAMPLES = (
    "file:///folder, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or "
    "abfss://container@account.dfs.core.windows.net/prefix"
)
NO_SECRETS = "set credentials in the environment (AWS_ACCESS_KEY_ID ...), or name a profile or a provider"

_INSTEAD = {
    "file": "write file:///absolute/folder",
    "abfs": "write abfss://container@account.dfs.core.windows.net/prefix, which is encrypted",
    "wasb": "write abfss://container@account.dfs.core.windows.net/prefix",
    "wasbs": "write abfss://container@account.dfs.core.windows.net/prefix",
    "gcs": "write gs:// instead",
    "s3n": "write s3:// instead",
    "dbfs": "a mounted path, /dbfs or /Volumes, has no hard links: use s3://bucket/prefix",
}
_KNOWN = frozenset({*SCHEMES, *_INSTEAD, "s3a", "http", "https", "hdfs", "ftp"})
"""The schemes that errors may repeat: any other word before a colon could be a user's name."""

_MOST_CHARACTERS = 4096

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
_BUCKET = re.compile(r"[A-Za-z0-9$_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?\Z")
_AT_ACCOUNT = re.compile(rf"(?:[A-Za-z0-9$](?:[A-Za-z0-9-]*[A-Za-z0-9])?@)?{_HOST}\Z")
_PREFIX = re.compile(r"[\w .,=+()~!'*/-]*\Z")
"""A name in a bucket: letters and digits of all languages, and some signs."""
_SERVER = re.compile(rf"(https?)://({_HOST}(?::[0-9]{{1,5}})?)((?:/[\w.~-]*)*)\Z", re.ASCII | re.IGNORECASE)
_BROKER = re.compile(rf"(?:[A-Z_]+://)?{_HOST}(?::[0-9]{{1,5}})?\Z")

_NAMED = (
    r"(?:secret|passw(?:or)?d|pwd|token|access[_-]?key|account[_-]?key|shared[_-]?key|api[_-]?key|credential|"
    r"signature|authorization|bearer|DefaultEndpointsProtocol|(?:blob|file|queue|table)endpoint|"
    r"(?<![a-z0-9])(?:sig|sas))[\w-]{0,40}\s?(?:=|%3D)"
)
_SECRETS = re.compile(rf"{_NAMED}|[?#;&][^/=]*=|:.*@|://", re.IGNORECASE)
"""Characters that are refused in a path, although a file system allows them."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TOLD = re.compile(
    rf"(?P<kept>\b[a-z][a-z0-9+.-]{{0,9}}://)[^\s@]{{0,1024}}@|[^\s\"',:]{{1,256}}:[^\s@]{{0,1024}}@"
    rf"|(?P<named>{_NAMED})[^\s\"',]+",
    re.IGNORECASE,
)
_LIKE_AN_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True)
class Address:
    """An address without secrets, which may be shown, logged and stored. ``str`` gives the whole text."""

    scheme: str
    """One of ``SCHEMES``; ``http`` or ``https`` for a server."""
    host: str
    """The bucket or container (``abfss``: with ``@account``), or the server with its port; empty for a folder."""
    path: str
    """The path in the bucket, without slashes around it; for a folder the path as given."""

    def __str__(self) -> str:
        if self.scheme == "file":
            return self.path
        return f"{self.scheme}://{self.host}" + (f"/{self.path}" if self.path else "")

    @property
    def is_folder(self) -> bool:
        """Whether this is the path of a folder on this machine."""
        return self.scheme == "file"

    @property
    def server(self) -> str:
        """The name of a server, without its port."""
        return re.sub(r":[0-9]+\Z", "", self.host).strip("[]").lower()


def scheme_of(text: str) -> str | None:
    """The part before the first colon of an address, in lower case; None for a path such as ``./a:b``."""
    found = _SCHEME.match(text)
    return None if found is None else found[1].lower()


def parse_address(text: str, what: str) -> Address:
    """Parse the address of a folder, a file or object storage; ``s3a://`` becomes ``s3://``. ``what`` names the
    place of the address in errors.

    Raises: UnsupportedStoreError, which does not repeat the address.
    """
    _check_length(text, what)
    scheme = scheme_of(text)
    separated = text[: len(scheme or "") + 3].endswith("://")
    if scheme is None or (separated and scheme == "file"):
        path = text[len("file://") :] if separated else text
        if separated and not path.startswith("/"):
            raise _refused(what, scheme, f"{_INSTEAD['file']}; there are {EXAMPLES} or memory://name")
        return Address("file", "", _folder(path, what))
    if not separated or scheme not in (*SCHEMES, "s3a"):
        raise _refused(what, scheme, _advice(scheme))
    scheme = "s3" if scheme == "s3a" else scheme
    host, _, path = text.partition("://")[2].partition("/")
    if not host and not _looks_secret(path):
        raise _refused(what, scheme, f"use a folder, {EXAMPLES} or memory://name")
    if not (_AT_ACCOUNT if scheme == "abfss" else _BUCKET).match(host) or not _PREFIX.match(path):
        raise _refused(
            what,
            scheme,
            "it contains a login, a signature, or characters other than letters, digits, spaces and "
            f"- _ . = + , ( ) ~ ! ' *; {NO_SECRETS}",
        )
    if _looks_secret(path):
        raise _refused(what, scheme, f"an address must not contain credentials; {NO_SECRETS}")
    return Address(scheme, host, path.strip("/"))


def parse_folder(text: str, what: str) -> str:
    """The path of a folder or a file on this machine, as given.

    Raises: UnsupportedStoreError, which does not repeat the path.
    """
    _check_length(text, what)
    if (scheme := scheme_of(text)) is not None:
        raise _refused(what, scheme, "write the path of a folder of this machine")
    return _folder(text, what)


def parse_server(text: str, what: str) -> Address:
    """Parse the address of a server, ``https://host:port/path``. Raises: UnsupportedStoreError, without the
    address.
    """
    _check_length(text, what)
    found = _SERVER.match(text)
    if found is None:
        raise _refused(
            what,
            scheme_of(text),
            f"write it as https://host:8081, without a login, a query or a fragment; {NO_SECRETS}",
        )
    return Address(found[1].lower(), found[2], found[3].strip("/"))


def parse_brokers(text: str, what: str) -> str:
    """Kafka brokers, ``host:port,...``, as given. Raises: UnsupportedStoreError, without the addresses."""
    _check_length(text, what)
    if not all(_BROKER.match(each.strip()) for each in text.split(",")):
        raise _refused(what, None, "write them as host:9092,host:9092; logins are settings (sasl.username ...)")
    return text


def redacted(text: str) -> str:
    """The text without logins in addresses, without values of secrets, and without refused addresses, for the log
    and the history.
    """
    if _LIKE_AN_ADDRESS.match(text) and not any(_takes(parse, text) for parse in (parse_address, parse_server)):
        return "(an address that is refused)"
    return _TOLD.sub(lambda found: found["kept"] or (f"{found['named']}..." if found["named"] else ""), text)


def _takes(parse: Callable[[str, str], Address], text: str) -> bool:
    try:
        parse(text, "")
    except UnsupportedStoreError:
        return False
    return True


def _check_length(text: str, what: str) -> None:
    if len(text) > _MOST_CHARACTERS:
        raise _refused(what, None, f"it has more than {_MOST_CHARACTERS} characters")


def _folder(path: str, what: str) -> str:
    if _CONTROL.search(path) or _looks_secret(path):
        raise _refused(
            what, None, f"a folder's path must not contain a login, parameters or control characters; {NO_SECRETS}"
        )
    return path


def _looks_secret(path: str) -> bool:
    return _SECRETS.search(path) is not None or _SECRETS.search(unquote(path)) is not None


def _advice(scheme: str) -> str:
    """The remedy for an address with an unknown scheme."""
    if len(scheme) == 1:
        return "a Windows drive cannot be a root: use a folder on a POSIX file system, or s3://bucket/prefix"
    known = f"use a folder, {EXAMPLES} (a folder with a colon in its name: ./name:...)"
    return _INSTEAD.get(scheme, known)


def _refused(what: str, scheme: str | None, why: str) -> UnsupportedStoreError:
    kind = f" ({scheme}:...)" if scheme in _KNOWN else ""
    return UnsupportedStoreError(f"{what}: this address{kind} is refused, and not repeated here: {why}")

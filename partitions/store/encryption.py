"""Encryption: no plain HTTP unless it is said, and no object without the key of its root. Pure."""

from __future__ import annotations

import ipaddress

from stratalog.partitions.errors import UnsupportedStoreError
from stratalog.partitions.store.address import parse_server
from stratalog.partitions.store.protocol import StoreOptions


def check_connection(url: str, options: StoreOptions) -> None:
    """Records and credentials travel encrypted, but to this machine, and where ``plain_http`` says so. Without a
    ``url`` the storage's own server is meant.

    Raises: UnsupportedStoreError.
    """
    if not url:
        return
    server = parse_server(url, "the server of the storage")
    if server.scheme != "http" or options.plain_http or _is_here(server.server):
        return
    raise UnsupportedStoreError(
        f"http://{server.server} is not encrypted: everybody on the way could read and change what is stored "
        "there. Use https://, or say plain_http = true in the storage table of the cluster file"
    )


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_key(wanted: str | None, answered: str | None, uri: str) -> None:
    """The storage has made an object at ``uri``, and says with which key it is encrypted. The name of a key and
    its address are one; of an alias the storage tells the key, which nobody here can compare.

    Raises: UnsupportedStoreError.
    """
    if wanted is None or (answered and (_name(answered) == _name(wanted) or _name(wanted).startswith("alias/"))):
        return
    with_which = f"encrypts it with {answered}" if answered else "does not say that it encrypts it with any key"
    raise UnsupportedStoreError(
        f"{uri} is to be encrypted with {wanted}, and the storage {with_which}: give it the key, or take it out "
        "of the cluster file"
    )


def _name(key: str) -> str:
    """``1234`` of ``arn:aws:kms:...:key/1234``; without the version that Google adds."""
    name = key.partition("/cryptoKeyVersions/")[0]
    return name.rpartition(":key/")[2] if name.startswith("arn:") and ":key/" in name else name.rpartition(":")[2]

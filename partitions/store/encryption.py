"""Encryption: refuses plain HTTP unless it is allowed, and objects that lack the key of their root. Pure."""

from __future__ import annotations

import ipaddress

from stratalog.partitions.errors import UnsupportedStoreError
from stratalog.partitions.store.address import parse_server
from stratalog.partitions.store.protocol import StoreOptions


def check_connection(url: str, options: StoreOptions) -> None:
    """Check that connections to ``url`` are encrypted. Plain HTTP is allowed only to this machine, or with
    ``plain_http``. No ``url`` means the storage's default server.

    Raises: UnsupportedStoreError.
    """
    if not url:
        return
    server = parse_server(url, "the server of the storage")
    if server.scheme != "http" or options.plain_http or _is_here(server.server):
        return
    raise UnsupportedStoreError(
        f"http://{server.server} is not encrypted: others on the network could read and change the data. Use "
        "https://, or set plain_http = true in the storage table of the cluster file"
    )


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_key(wanted: str | None, answered: str | None, uri: str) -> None:
    """Check that the storage encrypted the object at ``uri`` with the ``wanted`` key; ``answered`` is the key in
    its answer. A key's name and its address are treated as equal. For an alias the storage answers with the key,
    which cannot be compared with the alias.

    Raises: UnsupportedStoreError.
    """
    if wanted is None or (answered and (_name(answered) == _name(wanted) or _name(wanted).startswith("alias/"))):
        return
    with_which = f"encrypts it with {answered}" if answered else "does not confirm any key"
    raise UnsupportedStoreError(
        f"{uri} must be encrypted with {wanted}, but the storage {with_which}: make the key available to it, or "
        "remove the key from the cluster file"
    )


def _name(key: str) -> str:
    """The last part of a key's address: ``1234`` for ``arn:aws:kms:...:key/1234``; without the version that Google
    appends.
    """
    name = key.partition("/cryptoKeyVersions/")[0]
    return name.rpartition(":key/")[2] if name.startswith("arn:") and ":key/" in name else name.rpartition(":")[2]

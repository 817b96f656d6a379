"""The server and the current credentials of a storage, for clients of other libraries.

Such a client (delta-rs, pyiceberg) looks up missing options in its environment, by its own rules, and may find
another server there. So its options come from a ``Reached``, which sets all of them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratalog.partitions.clock import SystemClock
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.partitions.store.resolving import resolved


@dataclass(frozen=True, slots=True)
class Reached:
    """The connection to a storage. It contains secrets: create it for one call, and do not keep it."""

    scheme: str
    server: str
    """The server's address, even if it is the cloud's default."""
    options: StoreOptions
    """Resolved options."""
    shown: Mapping[str, str] = field(repr=False)
    """The credentials, under a provider's names; ``application_credentials`` is the path of Google's file. Empty:
    no credentials, or on Google the identity of the machine.
    """

    @property
    def plain(self) -> bool:
        """Whether the connection has no TLS; ``resolved`` has checked that this is allowed."""
        return self.server.startswith("http://")


def reached(uri: str, options: StoreOptions) -> Reached:
    """The current connection to the bucket of ``uri``, an address of object storage.

    Raises: StorageAuthenticationError, UnsupportedStoreError.
    """
    options = resolved(uri, options)
    scheme, _, rest = uri.partition("://")
    bucket = f"{scheme}://{rest.partition('/')[0]}"
    if scheme == "s3":
        from stratalog.partitions.store.s3_connection import S3Connection
        from stratalog.partitions.store.s3_session import shown_to_s3

        server, shown = S3Connection(options, SystemClock(), random.Random()).repeatable(
            f"find credentials for {bucket}", lambda client: (client.meta.endpoint_url, shown_to_s3(options))
        )
        return Reached(scheme, server, options, shown)
    from stratalog.partitions.store.object_fsspec import FsspecStore

    def server_and_credentials(session: Any) -> tuple[str, Mapping[str, str]]:
        return session.server, session.shown()

    server, shown = FsspecStore(bucket, options).requests.repeatable(
        f"find credentials for {bucket}", server_and_credentials
    )
    return Reached(scheme, server, options, shown)

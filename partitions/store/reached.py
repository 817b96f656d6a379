"""A storage as clients that are not ours are told of it: the server, and the credentials of this moment.

Such a client (delta-rs, pyiceberg) looks in its environment for what it is not told, by rules of its own, and may
find another cloud's server there. So its options are made of a ``Reached``, which leaves nothing open.
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
    """How a storage is reached. Made for one call and never kept: it holds secrets."""

    scheme: str
    server: str
    """Its address, also where it is the cloud's own."""
    options: StoreOptions
    """As ``resolved`` gives them."""
    shown: Mapping[str, str] = field(repr=False)
    """The credentials, by the names that a provider gives them; ``application_credentials`` is the path of
    Google's file. Empty: nobody's, or on Google the identity of the machine."""

    @property
    def plain(self) -> bool:
        """Whether there is no TLS; ``resolved`` has checked that this is allowed."""
        return self.server.startswith("http://")


def reached(uri: str, options: StoreOptions) -> Reached:
    """How the bucket of ``uri`` is reached now; ``uri`` is one of object storage.

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

    def told(session: Any) -> tuple[str, Mapping[str, str]]:
        return session.server, session.shown()

    server, shown = FsspecStore(bucket, options).requests.repeatable(f"find credentials for {bucket}", told)
    return Reached(scheme, server, options, shown)

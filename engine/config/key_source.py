"""Sources of the cluster key: the environment, a mounted file, or a secret provider.

The key is never read from storage, the cluster file or Spark's conf, and is never written to them. The text of the
key contains one or more secrets, separated by commas or white space. Each secret is base64 of at least 32 bytes.
The first secret signs. ``openssl rand -base64 32`` makes a secret.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import ClusterKeyError
from stratalog.partitions.secret_files import read_secret

KEY_VARIABLE = "STRATALOG_CLUSTER_KEY"

LEAST_BYTES = 32

KeySource = Callable[[], str | None]
"""A function that returns the text of the key, or None if the cluster has no key, or if this process only
reads."""


def key_of_environment() -> str | None:
    """Return the key in the environment variable; None if the variable is not set."""
    return os.environ.get(KEY_VARIABLE)


def key_file(path: str | Path) -> KeySource:
    """Return a source that reads a file when the key is needed."""

    def read() -> str:
        return read_secret(
            "the cluster key file",
            path,
            partial(Path.read_text, encoding="ascii"),
            ClusterKeyError,
            not_text="it is not valid base64",
        )

    return read


def read_key(cluster_id: str, source: KeySource) -> ClusterKey | None:
    """Return the key of a cluster; None if the source returns None. No error reveals a secret.

    Raises: ClusterKeyError if the text is empty, is not base64, or has a secret that is too short; errors from
        ``source``.
    """
    text = source()
    if text is None:
        return None
    words = text.replace(",", " ").split()
    if not words:
        raise ClusterKeyError(
            f"the key of cluster {cluster_id!r} is empty: unset {KEY_VARIABLE} for a cluster without a key; an "
            "empty value could be a key that was lost in transit"
        )
    return ClusterKey(cluster_id, [_secret(cluster_id, word, number) for number, word in enumerate(words, 1)])


def _secret(cluster_id: str, word: str, number: int) -> bytes:
    try:
        secret = base64.b64decode(word.encode("ascii", "replace"), validate=True)
    except (binascii.Error, ValueError):
        secret = None
    if secret is None or len(secret) < LEAST_BYTES:
        wrong = "is not valid base64" if secret is None else f"has {len(secret)} bytes, but needs {LEAST_BYTES}"
        raise ClusterKeyError(
            f"secret {number} of the key of cluster {cluster_id!r} {wrong}: make one with openssl rand -base64 32"
        )
    return secret

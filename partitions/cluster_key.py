"""The key of a cluster: its holders tell their files from a stranger's.

Storage does not hold the key, so the right to write to a root does not suffice to sign. A tag is HMAC-SHA-256, in
hexadecimal, of the cluster's id, the kind and the name of the object, and the SHA-256 of its bytes: an object that
is copied to another name, or to another cluster with the same key, is not signed there. An object that is put back
under its own name *is*: that storage shows an earlier state of itself is nothing that a tag can tell.

The tag stands in the object itself, so that one write stays one, and one read: in the footer of a data file
(``segment_signature``), as the last field of a JSON object (here), in the name of a claim.

A key never travels: it is not pickled, and its text says nothing of it. Executors need none.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import NoReturn

from stratalog.partitions.errors import UnsignedError

TAG_DIGITS = 64

_LAST_FIELD = re.compile(rb'(.*),"tag":"([0-9a-f]{64})"\}\Z', re.DOTALL)


class ClusterKey:
    """The secrets of one cluster. The first one signs; all verify, so that one can take another's place."""

    __slots__ = ("_secrets", "cluster_id", "trusting")

    def __init__(self, cluster_id: str, secrets: Sequence[bytes], *, trusting: bool = False) -> None:
        """``trusting``: objects are believed, signed or not; new ones are signed."""
        self._secrets = tuple(secrets)
        self.cluster_id = cluster_id
        self.trusting = trusting

    def __repr__(self) -> str:
        return f"ClusterKey({self.cluster_id!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("the key of a cluster stays in the process that was given it")

    def of(self, cluster_id: str) -> ClusterKey:
        """The same secrets as the key of another cluster."""
        return ClusterKey(cluster_id, self._secrets, trusting=self.trusting)

    def trusting_what_is_there(self) -> ClusterKey:
        """The same key, which verifies nothing."""
        return ClusterKey(self.cluster_id, self._secrets, trusting=True)

    def tag(self, kind: str, name: str, digest: bytes) -> str:
        """The tag of an object whose bytes, but for the tag, have this SHA-256."""
        return self._tag(self._secrets[0], kind, name, digest)

    def knows(self, kind: str, name: str, digest: bytes, tag: str) -> bool:
        """Whether a holder of the key gave the object this tag, or the first half of it."""
        if self.trusting:
            return True
        return len(tag) >= TAG_DIGITS // 2 and any(
            hmac.compare_digest(self._tag(secret, kind, name, digest)[: len(tag)].encode(), tag.encode())
            for secret in self._secrets
        )

    def check(self, kind: str, name: str, digest: bytes, tag: str, what: str) -> None:
        """Raises: UnsignedError, naming ``what``, for a tag that is missing (empty) or wrong."""
        if self.trusting or (len(tag) == TAG_DIGITS and self.knows(kind, name, digest, tag)):
            return
        wrong = "its signature is wrong" if tag else "it is not signed"
        raise UnsignedError(
            f"{what}: {wrong}: somebody wrote or changed it who does not have the key of cluster "
            f"{self.cluster_id!r}; it counts for nothing, and is left alone (a cluster that had no key, or "
            "another one, is signed by stratalog quorum sign)"
        )

    def _tag(self, secret: bytes, kind: str, name: str, digest: bytes) -> str:
        parts = (b"stratalog", self.cluster_id.encode(), kind.encode(), name.encode(), digest)
        return hmac.digest(secret, b"".join(b"%d:%s" % (len(part), part) for part in parts), "sha256").hex()


def signed_json(key: ClusterKey | None, kind: str, name: str, body: bytes) -> bytes:
    """A JSON object that is not empty, with its tag as the last field; as it is without a key."""
    if key is None:
        return body
    tag = key.tag(kind, name, hashlib.sha256(body).digest())
    return b'%s,"tag":"%s"}' % (body[:-1], tag.encode())


def unsigned_json(key: ClusterKey | None, kind: str, name: str, data: bytes, what: str) -> bytes:
    """The data that ``signed_json`` was given; without a key nothing is verified. ``what`` names it in errors.

    Raises: UnsignedError.
    """
    found = _LAST_FIELD.match(data)
    body, tag = (data, "") if found is None else (found[1] + b"}", found[2].decode())
    if key is not None:
        key.check(kind, name, hashlib.sha256(body).digest(), tag, what)
    return body

"""The key of a cluster, by which its holders distinguish their own files from files of others.

Storage does not hold the key, so write access to a root is not enough to sign. A tag is the hexadecimal
HMAC-SHA-256 of the cluster's id, the kind and the name of the object, and the SHA-256 of its bytes. So an object
that is copied to another name, or to another cluster with the same key, is not treated as signed there. An object
restored under its own name *is* signed: no tag can show that storage presents an earlier state of itself.

The object itself contains its tag, so that one write or read suffices. The tag is in the footer of a data file
(``segments.signature``), in the last field of a JSON object (this module), or in the name of a claim.

A key never leaves its process: it cannot be pickled, and its text does not contain it. Executors need no key.
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
    """The secrets of one cluster. The first secret signs; all secrets verify, so that they can be rotated."""

    __slots__ = ("_secrets", "cluster_id", "trusting")

    def __init__(self, cluster_id: str, secrets: Sequence[bytes], *, trusting: bool = False) -> None:
        """``trusting`` accepts objects whether signed or not; new objects are signed."""
        self._secrets = tuple(secrets)
        self.cluster_id = cluster_id
        self.trusting = trusting

    def __repr__(self) -> str:
        return f"ClusterKey({self.cluster_id!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("the key of a cluster must not leave the process that received it")

    def of(self, cluster_id: str) -> ClusterKey:
        """The key of another cluster, with the same secrets."""
        return ClusterKey(cluster_id, self._secrets, trusting=self.trusting)

    def trusting_what_is_there(self) -> ClusterKey:
        """A key with the same secrets that signs but does not verify."""
        return ClusterKey(self.cluster_id, self._secrets, trusting=True)

    def tag(self, kind: str, name: str, digest: bytes) -> str:
        """The tag of an object whose bytes, without the tag, have the SHA-256 ``digest``."""
        return self._tag(self._secrets[0], kind, name, digest)

    def knows(self, kind: str, name: str, digest: bytes, tag: str) -> bool:
        """Whether ``tag`` is the tag that a holder of the key gave the object, or at least the first half of that
        tag.
        """
        if self.trusting:
            return True
        return len(tag) >= TAG_DIGITS // 2 and any(
            hmac.compare_digest(self._tag(secret, kind, name, digest)[: len(tag)].encode(), tag.encode())
            for secret in self._secrets
        )

    def check(self, kind: str, name: str, digest: bytes, tag: str, what: str) -> None:
        """Raises: UnsignedError, which names ``what``, if the tag is missing (empty) or wrong."""
        if self.trusting or (len(tag) == TAG_DIGITS and self.knows(kind, name, digest, tag)):
            return
        wrong = "its signature is wrong" if tag else "it is not signed"
        raise UnsignedError(
            f"{what}: {wrong}: it was written or changed without the key of cluster "
            f"{self.cluster_id!r}; it is ignored and left unchanged (to sign a cluster that had no key or a "
            "different key, run stratalog quorum sign)"
        )

    def _tag(self, secret: bytes, kind: str, name: str, digest: bytes) -> str:
        parts = (b"stratalog", self.cluster_id.encode(), kind.encode(), name.encode(), digest)
        return hmac.digest(secret, b"".join(b"%d:%s" % (len(part), part) for part in parts), "sha256").hex()


def signed_json(key: ClusterKey | None, kind: str, name: str, body: bytes) -> bytes:
    """A non-empty JSON object with its tag as the last field; unchanged without a key."""
    if key is None:
        return body
    tag = key.tag(kind, name, hashlib.sha256(body).digest())
    return b'%s,"tag":"%s"}' % (body[:-1], tag.encode())


def unsigned_json(key: ClusterKey | None, kind: str, name: str, data: bytes, what: str) -> bytes:
    """The body that was passed to ``signed_json``; without a key the body is not verified. ``what`` names the
    object in errors.

    Raises: UnsignedError.
    """
    found = _LAST_FIELD.match(data)
    body, tag = (data, "") if found is None else (found[1] + b"}", found[2].decode())
    if key is not None:
        key.check(kind, name, hashlib.sha256(body).digest(), tag, what)
    return body

"""The roots of a cluster file beside each other: no storage is two of them, or is imported from."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError
from stratalog.partitions.store.protocol import StoreOptions

Root = tuple[str, str, StoreOptions]
"""Whose it is, its address, and how it is reached."""


def check_roots(roots: Sequence[Root]) -> None:
    """No root may be, or lie inside, another one; no address may mean two buckets.

    Raises: InvalidCallError; EnvironmentUnusableError where Python imports from one.
    """
    resolved = [(who, _resolved(address)) for who, address, _ in roots]
    _check_code_apart(resolved)
    for index, (who, root) in enumerate(resolved):
        for other, other_root in resolved[:index]:
            if f"{root}/".startswith(f"{other_root}/") or f"{other_root}/".startswith(f"{root}/"):
                raise InvalidCallError(
                    f"{other} and {who} share storage ({other_root} and {root}); give each a folder that is not "
                    "inside another's"
                )
    seen: dict[str, StoreOptions] = {}
    for _, address, options in roots:
        bucket = "/".join(address.split("/", 3)[:3])
        before = seen.setdefault(bucket, options)
        if (before.endpoint_url, before.account) != (options.endpoint_url, options.account):
            raise InvalidCallError(
                f"{bucket} is one of two servers or accounts, and Spark knows a bucket by its name: rename one"
            )


def _resolved(address: str) -> str:
    """The address with symbolic links followed, so that one folder has one name."""
    scheme, _, rest = address.partition("://")
    return f"file://{os.path.realpath(rest)}" if scheme == "file" else address


def _check_code_apart(roots: Sequence[tuple[str, str]]) -> None:
    """No folder that Python imports from may be in a root: nor the working folder, from which Spark's workers do.

    Raises: EnvironmentUnusableError.
    """
    for folder in ("", *sys.path):
        with suppress(OSError):  # the working folder may be gone
            resolved = os.path.realpath(folder)
            for who, root in roots:
                if f"file://{resolved}/".startswith(f"{root.rstrip('/')}/"):
                    raise EnvironmentUnusableError(
                        f"Python imports from {resolved}, which is storage of {who}: anybody who may write there "
                        "could run code here. Start this in another folder, and take storage off sys.path and "
                        "PYTHONPATH"
                    )

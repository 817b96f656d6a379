"""Storage of the demo: folders, or the buckets of a server on this machine, which the demo starts and stops."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cloud_servers import ACCOUNT, ACCOUNT_KEY, BUCKET, OTHER_SETTINGS, running_azure, running_gcs
from bench.s3_server import BUCKETS, OTHER_CREDENTIALS, REGION, credentials, running_server
from stratalog.jobs.jars import fetch_jars, jar_folder


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses of the parts that are not in folders."""

    remote: str
    broker: str
    buckets: tuple[str, ...]
    """Buckets that must exist, and be empty."""
    settings: str = ""
    """Further lines of the storage's table in the cluster file."""
    table: str = ""
    """The name of that table; empty: the name of the storage."""


_CONTAINER = f"abfss://{BUCKET}@{ACCOUNT}.dfs.core.windows.net"
PLACES = {
    "s3": Place(
        f"s3://{BUCKETS[0]}/remote", f"s3://{BUCKETS[1]}/broker-3", tuple(BUCKETS), f'region = "{REGION}"\n'
    ),
    "s3fs": Place(
        f"s3://{BUCKETS[0]}/remote",
        f"s3://{BUCKETS[1]}/broker-3",
        tuple(BUCKETS),
        f'region = "{REGION}"\ndriver = "fsspec"\n',
        "s3",
    ),
    "azure": Place(f"{_CONTAINER}/remote", f"{_CONTAINER}/broker-3", (BUCKET,)),
    "gcs": Place(f"gs://{BUCKET}/remote", f"gs://{BUCKET}/broker-3", (BUCKET,)),
}
"""Keyed by the name of the storage."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    store: str
    """A key of ``PLACES``."""
    endpoint: str

    @property
    def place(self) -> Place:
        """The addresses on this server."""
        return PLACES[self.store]

    @property
    def table(self) -> str:
        """The name of its table in the cluster file."""
        return self.place.table or self.store

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments for the commands of the demo."""
        return ("--store", self.store, "--endpoint", self.endpoint)


@contextmanager
def serving(store: str) -> Iterator[Server]:
    """A server with empty buckets. Its credentials are in this process's environment; Spark's jars for it are on
    disk.

    Raises: EnvironmentUnusableError.
    """
    of_s3 = store.startswith("s3")
    if not of_s3:
        fetch_jars(jar_folder(), f"{store}.xml")
    for name in (*OTHER_CREDENTIALS, *OTHER_SETTINGS):
        os.environ.pop(name, None)
    with ExitStack() as stack:
        if of_s3:
            os.environ.update(credentials())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stratalog-demo-")))
            endpoint = stack.enter_context(running_server(folder)).url
        elif store == "azure":
            os.environ["AZURE_STORAGE_ACCOUNT_KEY"] = ACCOUNT_KEY  # Hadoop's connector takes no connection string
            endpoint = stack.enter_context(running_azure()).url
        else:
            endpoint = stack.enter_context(running_gcs()).url
        yield Server(store, endpoint)

"""Runs emulators of Azure's and Google's object storage for tests: Azurite and fake-gcs-server on free ports of
127.0.0.1. ``make servers`` installs them if Node and Go are available."""

from __future__ import annotations

import base64
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cloud_gates import AzureGate, GcsGate, gate
from bench.s3_server import HOST, free_ports
from stratalog.partitions.errors import EnvironmentUnusableError

SERVERS = Path(__file__).resolve().parents[1] / ".cache" / "servers"
AZURITE = SERVERS / "node_modules" / ".bin" / "azurite-blob"
FAKE_GCS = SERVERS / "fake-gcs-server"
READY_WITHIN_S = 30.0

BUCKET = "stratalog"
ACCOUNT = "stratalogtest"
ACCOUNT_KEY = base64.b64encode(b"stratalog-test-account-key").decode()


@dataclass(frozen=True, slots=True)
class CloudEndpoint:
    """A running server with an empty bucket or container."""

    kind: str
    """``azure`` or ``gcs``."""
    url: str
    environment: Mapping[str, str]
    """The environment variables with the endpoint and the credentials for clients."""

    @property
    def root(self) -> str:
        """The address of the bucket."""
        return f"{'az' if self.kind == 'azure' else 'gs'}://{BUCKET}"


OTHER_SETTINGS = (
    *("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
    *("AZURE_STORAGE_SAS_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"),
)
"""Variables that would redirect clients, so they are removed from the environment."""


@contextmanager
def running_azure() -> Iterator[CloudEndpoint]:
    """Run Azurite, empty at the start; its content is removed afterwards.

    Raises: EnvironmentUnusableError when it is not installed, or does not start.
    """
    port, behind = free_ports(2)
    arguments = [f"--blobHost={HOST}", f"--blobPort={behind}", "--inMemoryPersistence", "--silent"]
    arguments += ["--skipApiVersionCheck", "--disableTelemetry"]
    url = f"http://{HOST}:{port}/{ACCOUNT}"
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={url};"
    )
    endpoint = CloudEndpoint("azure", url, {"AZURE_STORAGE_CONNECTION_STRING": connection})
    accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
    with (
        serving([str(AZURITE), *arguments], accounts, f"http://{HOST}:{behind}/{ACCOUNT}"),
        gate(AzureGate, HOST, port, behind),
    ):
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(connection) as service:
            service.create_container(BUCKET)
        yield endpoint


@contextmanager
def running_gcs() -> Iterator[CloudEndpoint]:
    """Run fake-gcs-server, empty at the start; its content is removed afterwards.

    Raises: EnvironmentUnusableError when it is not installed, or does not start.
    """
    port, behind = free_ports(2)
    url = f"http://{HOST}:{port}"
    arguments = [
        "-scheme=http",
        f"-host={HOST}",
        f"-port={behind}",
        "-backend=memory",
        f"-public-host={HOST}:{port}",
    ]
    endpoint = CloudEndpoint("gcs", url, {"STORAGE_EMULATOR_HOST": url})
    with (
        serving([str(FAKE_GCS), *arguments, "-log-level=error"], {}, f"http://{HOST}:{behind}/storage/v1/b"),
        gate(GcsGate, HOST, port, behind),
    ):
        about = f'{{"name": "{BUCKET}"}}'.encode()
        request = urllib.request.Request(
            f"{url}/storage/v1/b", data=about, headers={"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=READY_WITHIN_S).close()
        yield endpoint


@contextmanager
def serving(command: Sequence[str], environment: Mapping[str, str], url: str) -> Iterator[None]:
    """Run a process that answers at ``url``, for the block."""
    program = Path(command[0])
    if not program.exists():
        raise EnvironmentUnusableError(
            f"{program.name} is not installed: make servers installs it, if Node and Go are available"
        )
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env={**os.environ, **environment}, **quiet)  # type: ignore[call-overload]
    try:
        give_up = time.monotonic() + READY_WITHIN_S
        while not _answers(url):
            if server.poll() is not None or time.monotonic() > give_up:
                raise EnvironmentUnusableError(f"{program.name} did not start")
            time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except urllib.error.HTTPError:
        return True  # the server refuses, so it is running
    except OSError:
        return False
    return True

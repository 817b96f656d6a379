"""The results of ``check_store`` on the servers of this machine: one line for each server and setting.

    python -m tests.stores_matrix                        all servers that are installed
    python -m tests.stores_matrix SeaweedFS versitygw    some of them

``make setup`` installs SeaweedFS, and ``make servers`` installs Azurite and fake-gcs-server. Others run if their
program is in ``.cache/servers``, for example after ``GOBIN=$PWD/.cache/servers go install
github.com/versity/versitygw/cmd/versitygw@v1.8.0``. Each server begins with nothing in it, on 127.0.0.1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import botocore.session

from bench.cloud_servers import SERVERS, running_azure, running_gcs, serving
from bench.s3_server import ACCESS_KEY, HOST, REGION, SECRET_KEY, credentials, free_ports, running_server
from stratalog.partitions.errors import EnvironmentUnusableError

BUCKET = "matrix"
LONGEST_S = 600
CHECK = [sys.executable, "-m", "stratalog.jobs.check_store"]
NAMES_OF_RESULTS = {0: "all rules kept", 1: "broken"}


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a server's bucket, and the settings of its clients."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


@contextmanager
def seaweedfs() -> Iterator[Place]:
    """The server of ``make setup``."""
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as endpoint:
        yield Place(_s3(endpoint.bucket, endpoint.url), credentials())


@contextmanager
def azurite() -> Iterator[Place]:
    """Azurite."""
    with running_azure() as endpoint:
        yield Place([f"{endpoint.root}/matrix"], endpoint.environment)


@contextmanager
def fake_gcs() -> Iterator[Place]:
    """fake-gcs-server."""
    with running_gcs() as endpoint:
        yield Place([f"{endpoint.root}/matrix"], endpoint.environment)


@contextmanager
def _installed(
    program: str, arguments: Callable[[str, str], Sequence[str]], environment: Mapping[str, str]
) -> Iterator[Place]:
    """An S3 server of ``.cache/servers``; ``arguments`` are those for its address and its folder."""
    [port] = free_ports(1)
    address = f"{HOST}:{port}"
    with tempfile.TemporaryDirectory() as folder:
        command = [str(SERVERS / program), *arguments(address, folder)]
        with serving(command, environment, f"http://{address}/"):
            client = botocore.session.get_session().create_client(
                "s3",
                region_name=REGION,
                endpoint_url=f"http://{address}",
                aws_access_key_id=ACCESS_KEY,
                aws_secret_access_key=SECRET_KEY,
            )
            client.create_bucket(Bucket=BUCKET)
            yield Place(_s3(BUCKET, f"http://{address}"), credentials())


def versitygw() -> AbstractContextManager[Place]:
    """versitygw on a folder."""
    keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY]
    return _installed("versitygw", lambda address, folder: ["--port", address, *keys, "posix", folder], {})


def minio() -> AbstractContextManager[Place]:
    """MinIO on a folder."""
    keys = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
    return _installed("minio", lambda address, folder: ["server", "--address", address, folder], keys)


def _s3(bucket: str, url: str) -> list[str]:
    return [f"s3://{bucket}/matrix", "--endpoint-url", url, "--region", REGION]


Server = Callable[[], AbstractContextManager[Place]]
MULTIPART = ("--exclusive-multipart",)
FSSPEC = ("--driver", "fsspec")
SERVERS_AND_SETTINGS: dict[str, tuple[Server, Sequence[Sequence[str]]]] = {
    "SeaweedFS": (seaweedfs, ((), FSSPEC, MULTIPART)),
    "Azurite": (azurite, ((), FSSPEC)),
    "fake-gcs-server": (fake_gcs, ((), FSSPEC)),
    "versitygw": (versitygw, ((), FSSPEC, MULTIPART)),
    "MinIO": (minio, ((), FSSPEC, MULTIPART)),
}


def verdict(place: Place, settings: Sequence[str]) -> str:
    """The result of ``check_store``, with the rules that are broken."""
    ended = subprocess.run(
        [*CHECK, *place.arguments, *settings],
        env={**os.environ, **place.environment},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    broken = [line.partition("BROKEN")[0].strip() for line in ended.stdout.splitlines() if "BROKEN" in line]
    result = NAMES_OF_RESULTS.get(ended.returncode, f"not checked: {ended.stderr.strip()[-200:]}")
    return f"{result}: {', '.join(broken)}" if broken else result


def main(names: Sequence[str]) -> int:
    """Check the named servers, or all. Returns the exit status: 2 for an unknown name."""
    if unknown := [name for name in names if name not in SERVERS_AND_SETTINGS]:
        print(f"stores_matrix: no server {unknown[0]!r}: name some of {', '.join(SERVERS_AND_SETTINGS)}")
        return 2
    for name in names or SERVERS_AND_SETTINGS:
        server, settings = SERVERS_AND_SETTINGS[name]
        for setting in settings:
            try:
                with server() as place:
                    result = verdict(place, setting)
            except EnvironmentUnusableError as missing:
                result = f"not checked: {missing}"
            print(f"| {name} | {' '.join(setting) or 'none'} | {result} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

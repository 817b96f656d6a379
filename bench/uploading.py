"""Tiers to an S3 server, compared with a plain multipart upload of the same files to the same server."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import botocore.config
import botocore.session

from bench.bench import Bench, cluster_file, data_files, size_of
from bench.measuring import cpu_timed, in_turn, timed
from bench.options import size_text
from bench.s3_server import OTHER_CREDENTIALS, SERVER, S3Endpoint, credentials, running_server
from bench.table import Limit, Line, speed_line
from stratalog import Cluster

T = TypeVar("T")

AT_LEAST = 0.8
CPU_SECONDS = Limit(0.6, at_most=True)
"""Seconds of one core for ``CPU_BYTES``, which leaves the rest of the core for other work at 200 MB/s."""
CPU_BYTES = 200_000_000
CPU = (
    "User and system time of the driver, the JVM and the workers, without the server's. Connections are not "
    "encrypted, so both sides sign requests with SHA-256, which https would not need."
)
PART_BYTES = 16 * 1024 * 1024
THREADS = 8
IN_ONE_PUT = (
    "SeaweedFS completes a multipart upload exclusively only without concurrent requests (exclusive_multipart "
    "= false, the default for servers other than Amazon's): a segment is one conditional PUT, and its bytes are "
    "read more than once, first for the checksum."
)


def tier_to_s3(bench: Bench) -> list[Line]:
    """Tier all partitions, each time to a server that has just been started."""
    made = bench.filled(bench.options.partitions)
    made.tiered()
    bench.say("tier to an S3 server")
    made.cluster.replicate().raise_for_failures()  # only what is below the high watermark is tiered
    files = data_files(made.replicas(leading=True))
    size = size_of(files)
    folder = bench.folder / "s3"

    used: defaultdict[str, list[float]] = defaultdict(list)

    def measured(name: str, work: Callable[[], T]) -> tuple[float, T]:
        cpu_s, found = cpu_timed(lambda: timed(work), besides=SERVER)
        used[name].append(cpu_s)
        return found

    def tier_all(name: str, exclusive_multipart: bool) -> float:
        with fresh_server(folder) as endpoint:
            s3: dict[str, str | bool] = {"endpoint_url": endpoint.url, "exclusive_multipart": exclusive_multipart}
            remote = f"s3://{endpoint.bucket}/tier"
            cluster = Cluster.open(cluster_file(made.folder, made.name, made.brokers, remote, s3), bench.spark)
            seconds, report = measured(name, cluster.tier)
        uploaded = report.raise_for_failures().totals["uploaded_bytes"]
        if uploaded != size:
            raise AssertionError(f"tier uploaded {uploaded} of {size} bytes")
        return seconds

    def upload_plainly() -> float:
        with fresh_server(folder) as endpoint:
            return measured("peer", lambda: upload_files(endpoint, files))[0]

    def cpu_line(name: str) -> Line:
        ours_s, peer_s = (max(used[each]) * CPU_BYTES / size for each in (name, "peer"))
        return Line(
            f"    CPU of {size_text(CPU_BYTES)}", f"{ours_s:.2f} s", f"{peer_s:.2f} s", ours_s, CPU_SECONDS, CPU
        )

    parts, put = "as to Amazon's", "in one PUT"
    in_parts, in_one_put, peer = in_turn(
        lambda: tier_all(parts, True), lambda: tier_all(put, False), upload_plainly
    )
    return [
        speed_line(f"tier to an S3 server, {parts}", size, in_parts, peer, AT_LEAST),
        cpu_line(parts),
        speed_line(f"tier to an S3 server, {put}", size, in_one_put, peer, AT_LEAST, IN_ONE_PUT),
        cpu_line(put),
    ]


def reach_servers() -> None:
    """Put the servers' credentials into the environment of this process, before the session starts."""
    for variable in OTHER_CREDENTIALS:
        os.environ.pop(variable, None)
    os.environ.update(credentials())


@contextmanager
def fresh_server(folder: Path) -> Iterator[S3Endpoint]:
    """An empty server, whose data is removed afterwards."""
    folder.mkdir(parents=True)
    try:
        with running_server(folder) as endpoint:
            yield endpoint
    finally:
        shutil.rmtree(folder)


def upload_files(endpoint: S3Endpoint, files: Sequence[Path]) -> None:
    """Upload every file by a multipart upload, with all parts of all files in a pool: the peer of tiering."""
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=endpoint.url,
        config=botocore.config.Config(
            max_pool_connections=THREADS,
            request_checksum_calculation="when_required",
            s3={"addressing_style": "path"},
        ),
    )
    with ThreadPoolExecutor(THREADS) as pool:
        uploads = []
        for number, file in enumerate(files):
            address = {"Bucket": endpoint.bucket, "Key": f"plain/{number}/{file.name}"}
            address["UploadId"] = client.create_multipart_upload(**address)["UploadId"]
            starts = range(0, file.stat().st_size, PART_BYTES)
            parts = [pool.submit(_part, client, address, file, i, start) for i, start in enumerate(starts)]
            uploads.append((address, parts))
        for address, parts in uploads:
            etags = [{"PartNumber": i, "ETag": part.result()} for i, part in enumerate(parts, start=1)]
            client.complete_multipart_upload(**address, MultipartUpload={"Parts": etags})


def _part(client: Any, address: dict[str, str], file: Path, index: int, start: int) -> str:
    with file.open("rb") as source:
        source.seek(start)
        data = source.read(PART_BYTES)
    return str(client.upload_part(**address, PartNumber=index + 1, Body=data)["ETag"])

"""Tier to an S3 server, against a plain multipart upload of the same files to the same server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import botocore.config
import botocore.session

from engine import Cluster
from engine.report import Report
from jobs.benchmarks.bench import Bench, cluster_file, data_files, size_of
from jobs.benchmarks.measuring import in_turn, seconds_of
from jobs.benchmarks.s3_server import OTHER_CREDENTIALS, S3Endpoint, credentials, running_server
from jobs.benchmarks.table import Line, speed_line

AT_LEAST = 0.8
PART_BYTES = 16 * 1024 * 1024
THREADS = 8
IN_ONE_PUT = (
    "SeaweedFS completes a multipart upload exclusively only while nobody races (exclusive_multipart = false, the "
    "default for servers other than Amazon's): a segment is one conditional PUT, and its bytes are read twice, "
    "first for their MD5."
)


def tier_to_s3(bench: Bench) -> list[Line]:
    """All partitions, each time to a server that has just been started."""
    made = bench.filled(bench.options.partitions)
    made.tiered()
    bench.say("tier to an S3 server")
    made.cluster.replicate().raise_for_failures()  # only what is below the high watermark is tiered
    files = data_files(made.replicas(leading=True))
    size = size_of(files)
    folder = bench.folder / "s3"

    def tier_all(exclusive_multipart: bool) -> float:
        with fresh_server(folder) as endpoint:
            s3: dict[str, str | bool] = {"endpoint_url": endpoint.url, "exclusive_multipart": exclusive_multipart}
            remote = f"s3://{endpoint.bucket}/tier"
            cluster = Cluster.open(cluster_file(made.folder, made.name, made.brokers, remote, s3), bench.spark)
            reports: list[Report] = []
            seconds = seconds_of(lambda: reports.append(cluster.tier()))
        uploaded = reports[0].raise_for_failures().totals["uploaded_bytes"]
        if uploaded != size:
            raise AssertionError(f"tier uploaded {uploaded} of {size} bytes")
        return seconds

    def upload_plainly() -> float:
        with fresh_server(folder) as endpoint:
            return seconds_of(lambda: upload_files(endpoint, files))

    named_at_once, in_one_put, peer = in_turn(lambda: tier_all(True), lambda: tier_all(False), upload_plainly)
    return [
        speed_line("tier to an S3 server, as to Amazon's", size, named_at_once, peer, AT_LEAST),
        speed_line("tier to an S3 server, in one PUT", size, in_one_put, peer, AT_LEAST, IN_ONE_PUT),
    ]


def reach_servers() -> None:
    """Put the servers' credentials where this process' children find them: before the session starts."""
    for variable in OTHER_CREDENTIALS:
        os.environ.pop(variable, None)
    os.environ.update(credentials())


@contextmanager
def fresh_server(folder: Path) -> Iterator[S3Endpoint]:
    """A server with nothing in it, whose data are gone afterwards."""
    folder.mkdir(parents=True)
    try:
        with running_server(folder) as endpoint:
            yield endpoint
    finally:
        shutil.rmtree(folder)


def upload_files(endpoint: S3Endpoint, files: Sequence[Path]) -> None:
    """What tiering is measured against: every file a multipart upload, all parts of all files in a pool."""
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

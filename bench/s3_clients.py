"""Two clients of S3 side by side on one server: the product's, on botocore, and s3fs (aiobotocore).

    pip install s3fs && python -m bench.s3_clients        # in an environment of its own: it pins an older botocore

Each moves parts of 16 MiB as the product does (``ChecksumCRC32`` up, ranges down), by one, two and eight threads,
in turn; the ratios are medians of the pairs. s3fs is asked by its ``call_s3``, its own retries off.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import s3fs
from fsspec.asyn import sync
from isal import isal_zlib

from bench.s3_server import S3Endpoint, credentials, running_server
from stratalog.partitions.store import StoreOptions
from stratalog.partitions.store.s3_connection import client_of
from stratalog.partitions.store.s3_upload import crc32_text

PART_BYTES = 16 * 1024 * 1024
SMALL_BYTES = 2_000
PAIRS = 5
_CONFIG = {
    "s3": {"addressing_style": "path", "payload_signing_enabled": True},
    "max_pool_connections": 64,
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
    "retries": {"total_max_attempts": 1, "mode": "standard"},
}

Put = Callable[[str, bytes], Any]
Get = Callable[[str, int], bytes]


def botocore_calls(endpoint: S3Endpoint) -> tuple[Put, Get]:
    client = client_of(StoreOptions(endpoint.url, endpoint.region))

    def put(key: str, data: bytes) -> None:
        client.put_object(
            Bucket=endpoint.bucket, Key=key, Body=data, ChecksumCRC32=crc32_text(isal_zlib.crc32(data))
        )

    def get(key: str, size: int) -> bytes:
        answer = client.get_object(Bucket=endpoint.bucket, Key=key, Range=f"bytes=0-{size - 1}")
        return bytes(answer["Body"].read())

    return put, get


def s3fs_calls(endpoint: S3Endpoint) -> tuple[Put, Get]:
    files = s3fs.S3FileSystem(
        endpoint_url=endpoint.url,
        client_kwargs={"region_name": endpoint.region},
        config_kwargs=_CONFIG,
        skip_instance_cache=True,
    )
    files.retries = 1
    files.connect()

    def put(key: str, data: bytes) -> None:
        checksum = crc32_text(isal_zlib.crc32(data))
        files.call_s3("put_object", Bucket=endpoint.bucket, Key=key, Body=data, ChecksumCRC32=checksum)

    async def ranged(key: str, size: int) -> bytes:
        answer = await files._call_s3("get_object", Bucket=endpoint.bucket, Key=key, Range=f"bytes=0-{size - 1}")
        async with answer["Body"] as body:
            return bytes(await body.read())

    return put, lambda key, size: sync(files.loop, ranged, key, size)


def measured(calls: int, threads: int, call: Callable[[int], object]) -> tuple[float, float]:
    """Seconds of the clock and of this process' CPU."""
    began, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(call, range(calls)))
    return time.perf_counter() - began, time.process_time() - used


def main() -> None:
    os.environ.update(credentials())
    data, small = os.urandom(PART_BYTES), os.urandom(SMALL_BYTES)
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as endpoint:
        clients = [botocore_calls(endpoint), s3fs_calls(endpoint)]
        print("threads  what           botocore       s3fs           s3fs / botocore   CPU of s3fs / botocore")
        for threads in (1, 2, 8):
            for what, calls, body in (("16 MiB", 16, data), ("2 kB", 100, small)):
                for way in ("up", "down"):
                    seen: list[list[tuple[float, float]]] = [[], []]
                    for _ in range(PAIRS):
                        for (put, get), times in zip(clients, seen, strict=True):

                            def call(
                                number: int, put: Put = put, get: Get = get, way: str = way, body: bytes = body
                            ) -> None:
                                key = f"{len(body)}/{number}"
                                if way == "up":
                                    put(key, body)
                                elif get(key, len(body)) != body:
                                    raise AssertionError(f"{key} came back as something else")

                            times.append(measured(calls, threads, call))
                    per_s = [calls / statistics.median(t for t, _ in times) for times in seen]
                    shown = [
                        f"{n * len(body) / 1e6:7.0f} MB/s" if len(body) > 9e6 else f"{n:7.0f} /s  " for n in per_s
                    ]
                    pairs = list(zip(*seen, strict=True))
                    speed = statistics.median(ours[0] / theirs[0] for ours, theirs in pairs)
                    cpu = statistics.median(theirs[1] / ours[1] for ours, theirs in pairs)
                    print(
                        f"{threads:>7}  {what:6} {way:5}  {shown[0]}  {shown[1]}  {speed:10.2f}  {cpu:20.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

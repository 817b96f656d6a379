"""Compares three S3 clients on one server: the product's (botocore), s3fs (aiobotocore) and obstore.

    python -m bench.s3_clients            # needs s3fs and obstore

Each client moves objects of 16 MiB and of 2 kB as the product does (``ChecksumCRC32`` up, ranges down), with one
and four threads, in turns. It prints the speed of each client, and this process's CPU milliseconds per request, as
the median of the turns with their range. s3fs is called through its ``call_s3``, without its own retries. obstore
accepts no CRC-32 from its caller.
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

import obstore
import s3fs
from fsspec.asyn import sync
from isal import isal_zlib
from obstore.store import S3Store as ObstoreS3

from bench.s3_server import ACCESS_KEY, SECRET_KEY, S3Endpoint, credentials, running_server
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


def obstore_calls(endpoint: S3Endpoint) -> tuple[Put, Get]:
    store = ObstoreS3(
        endpoint.bucket,
        endpoint=endpoint.url,
        region=endpoint.region,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    return (
        lambda key, data: obstore.put(store, key, data, use_multipart=False),
        lambda key, size: bytes(obstore.get_range(store, key, start=0, end=size)),
    )


def measured(calls: int, threads: int, call: Callable[[int], object]) -> tuple[float, float]:
    """The elapsed seconds, and the CPU seconds of this process."""
    began, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(call, range(calls)))
    return time.perf_counter() - began, time.process_time() - used


def main() -> None:
    os.environ.update(credentials())
    data, small = os.urandom(PART_BYTES), os.urandom(SMALL_BYTES)
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as endpoint:
        clients = {
            "botocore": botocore_calls(endpoint),
            "s3fs": s3fs_calls(endpoint),
            "obstore": obstore_calls(endpoint),
        }
        print("threads  what         client     speed           CPU ms per request (range)   ratio to botocore")
        for threads in (1, 4):
            for what, calls, body in (("16 MiB", 8, data), ("2 kB", 200, small)):
                for way in ("up", "down"):
                    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
                    for _ in range(PAIRS):
                        for name, (put, get) in clients.items():

                            def call(
                                number: int, put: Put = put, get: Get = get, way: str = way, body: bytes = body
                            ) -> None:
                                key = f"{len(body)}/{number}"
                                if way == "up":
                                    put(key, body)
                                elif get(key, len(body)) != body:
                                    raise AssertionError(f"{key} came back with different bytes")

                            seen[name].append(measured(calls, threads, call))
                    for name, turns in seen.items():
                        per_s = calls / statistics.median(clock for clock, _ in turns)
                        speed = f"{per_s * len(body) / 1e6:7.0f} MB/s" if len(body) > 9e6 else f"{per_s:7.0f} /s  "
                        cpu_ms = sorted(1000 * cpu / calls for _, cpu in turns)
                        ratio = statistics.median(
                            theirs / ours for (_, theirs), (_, ours) in zip(turns, seen["botocore"], strict=True)
                        )
                        middle = statistics.median(cpu_ms)
                        print(
                            f"{threads:>7}  {what:6} {way:5} {name:9} {speed}  "
                            f"{middle:8.2f} ({cpu_ms[0]:.2f} to {cpu_ms[-1]:.2f})  {ratio:8.2f}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()

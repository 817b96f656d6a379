"""Test whether a storage gives the guarantees that a log needs. The report has one row per guarantee.

  stratalog check_store s3://bucket/prefix --endpoint-url https://s3.example.org
  stratalog check_store /mnt/nfs/folder

The job lets 16 processes race to create small and large objects under the same names. Then it checks listings,
deletes, range reads, copies and the clock of the storage. The exit status is 1 if a guarantee was broken. The job
leaves no files behind, and needs no cluster.
"""

from __future__ import annotations

import argparse
import os
import sys

from stratalog import Failure, Report
from stratalog.engine.config.file_place import provider_of
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.identity import random_id
from stratalog.partitions.store import StoreOptions, open_store
from stratalog.partitions.store.address import parse_address
from stratalog.partitions.store.checking import PART_BYTES, StoreCheck
from stratalog.partitions.store.credentials import CredentialSource
from stratalog.partitions.store.racing import race_in_processes


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="an existing folder, or an address in object storage")
    parser.add_argument("--endpoint-url", metavar="URL", help="endpoint of your object storage server")
    parser.add_argument("--region", metavar="NAME", help="S3 region")
    parser.add_argument(
        "--exclusive-multipart",
        action="store_true",
        default=None,
        help="create objects by completing multipart uploads (same as exclusive_multipart in the [s3] table of "
        "the cluster file)",
    )
    parser.add_argument(
        "--plain-http", action="store_true", help="allow access to a server on another machine without TLS"
    )
    parser.add_argument(
        "--driver", choices=["fsspec"], help="access the store through fsspec (same as driver in the cluster file)"
    )
    parser.add_argument("--file-system", metavar="NAME", help="fsspec file system, as package.module:function")


def check_store(job: Job) -> Report:
    """Check a storage. Raises: UnsupportedStoreError for an address that cannot be opened."""
    given, clock = job.arguments, SystemClock()
    address = parse_address(given.url, "URL")
    url = os.path.abspath(address.path) if address.is_folder else str(address)
    provider = provider_of(given.credentials, os.environ)
    options = StoreOptions(
        given.endpoint_url,
        given.region,
        credentials=None if provider is None else CredentialSource(provider, url),
        part_bytes=PART_BYTES,
        exclusive_multipart=given.exclusive_multipart,
        plain_http=given.plain_http,
        driver=given.driver or ("fsspec" if given.file_system else None),
        file_system=given.file_system,
    )
    store, other = (open_store(url, options) for _ in range(2))
    began = clock.monotonic_s()
    verdicts = StoreCheck(store, other, race_in_processes, clock, random_id).verdicts()
    return Report(
        "check_store",
        [{"rule": v.rule, "verdict": "kept" if v.kept else "BROKEN", "seen": v.result} for v in verdicts],
        [Failure(v.rule, "UNSUPPORTED_STORE", v.result) for v in verdicts if not v.kept],
        seconds=clock.monotonic_s() - began,
        counts=store.counts.snapshot(),
    )


main = JobMain("check_store", __doc__, arguments, check_store, runs="driver")


if __name__ == "__main__":
    sys.exit(main())

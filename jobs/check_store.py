"""Is this storage good enough? Tries every rule that the log rests on, and says what it found.

  stratalog check_store s3://bucket/prefix --endpoint-url https://s3.example.org
  stratalog check_store /mnt/nfs/folder
16 processes race for names, small and large; listings, deletes, ranges, copies and the clock are compared with
what was written. It exits with 1 when a rule was broken, and leaves no file behind. No cluster is needed.
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
    parser.add_argument("url", metavar="URL", help="a folder that exists, or an address of object storage")
    parser.add_argument("--endpoint-url", metavar="URL", help="of a server of one's own")
    parser.add_argument("--region", metavar="NAME", help="of S3")
    parser.add_argument(
        "--exclusive-multipart",
        action="store_true",
        default=None,
        help="as in [s3]: the completion of an upload is what is raced with",
    )
    parser.add_argument("--plain-http", action="store_true", help="a server other than this machine needs no TLS")


def check_store(job: Job) -> Report:
    """Raises: UnsupportedStoreError for an address that cannot be opened."""
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
    )
    store, other = (open_store(url, options) for _ in range(2))
    began = clock.monotonic_s()
    verdicts = StoreCheck(store, other, race_in_processes, clock, random_id).verdicts()
    return Report(
        "check_store",
        [{"rule": v.rule, "verdict": "kept" if v.kept else "BROKEN", "seen": v.says} for v in verdicts],
        [Failure(v.rule, "UNSUPPORTED_STORE", v.says) for v in verdicts if not v.kept],
        seconds=clock.monotonic_s() - began,
        counts=store.counts.snapshot(),
    )


main = JobMain("check_store", __doc__, arguments, check_store, runs="driver")


if __name__ == "__main__":
    sys.exit(main())

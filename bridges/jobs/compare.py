"""Compare mirrored topics with their source in a Kafka cluster, record by record; needs no Spark.

  stratalog compare trips,fares --with kafka-1:9092
  stratalog compare trips --with kafka-1:9092 --format confluent-avro --schema trip.avsc
  stratalog compare trips --offline s3://backup/logs --tier s3://kafka-tier/prefix --layout aiven   no brokers left

Compares offset, timestamp, key, value and headers of every committed record, for all offsets that both sides have.
If any record differs, the exit status is 1, and the report names the offsets. Records that compaction has removed
from one side are counted, but are not differences. For a topic with typed values, give the format and schema that
the mirror used; decoded values are compared. With --tier, the other side is read from the source's tier. Offsets
that are unclear in the tier are not compared, and notes name these offsets. Needs confluent-kafka:
pip install 'stratalog[kafka]'.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.bridges.jobs.mirror import OF_TIER, SPECIAL, TIER, check_format, tier_of
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    method = "stratalog.bridges.kafka:Kafka.compare"
    special = {**SPECIAL, "bootstrap": {**SPECIAL["bootstrap"], "flags": ("--with",)}}
    other = parser.add_mutually_exclusive_group(required=True)
    add_declared(other, method, only=["bootstrap"], special=special)
    add_declared(other, TIER, only=["metadata"], special=special)
    add_declared(parser, method, leave_out=["bootstrap", "tier"], special=special)
    add_declared(parser.add_argument_group("tiered storage of the source"), TIER, only=OF_TIER, special=special)


def compare(job: Job) -> Report:
    given = job.arguments
    check_format(given)
    return call(job.cluster().compare, given, topics=given.mirrored, tier=tier_of(given))


main = JobMain("compare", __doc__, arguments, compare, runs="driver")


if __name__ == "__main__":
    sys.exit(main())

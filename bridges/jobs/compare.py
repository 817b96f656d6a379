"""Compare mirrored topics with their source in a Kafka cluster, record by record; needs no Spark.

  stratalog compare trips,fares --with kafka-1:9092
  stratalog compare trips --with kafka-1:9092 --format confluent-avro --schema trip.avsc

Compares offset, timestamp, key, value and headers of every committed record that both sides can have. The exit
status is 1 if any record differs; the report names offsets. Records that the source has since compacted away are
counted, and are not differences. In a topic with typed values the decoded values are compared: give the format and
schema that the mirror used. Needs confluent-kafka: pip install 'stratalog[kafka]'.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.bridges.jobs.mirror import add_source, check_format, format_of
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with", dest="bootstrap", metavar="HOST:PORT", required=True, help="brokers of the source"
    )
    add_source(parser)


def compare(job: Job) -> Report:
    given = job.arguments
    check_format(given)
    return job.cluster().compare(given.bootstrap, given.mirrored, configs=dict(given.config), **format_of(given))


main = JobMain("compare", __doc__, arguments, compare, runs="driver")


if __name__ == "__main__":
    sys.exit(main())

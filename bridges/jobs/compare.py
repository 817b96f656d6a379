"""Compare topics of a Kafka cluster with what was mirrored of them, record for record; needs no Spark.

  stratalog compare --with kafka-1:9092 --topics trips,fares
  stratalog compare --with kafka-1:9092 --topics trips --format confluent-avro --schema trip.avsc

Offset, timestamp, key, value and headers of every committed record that both sides can have. The exit status is 1
where any differs; the report names offsets. Records that the source has compacted away since are counted, and no
difference. Of a topic with typed values what was decoded is compared, by the format and schema it was mirrored
with. It takes confluent-kafka: pip install 'stratalog[kafka]'.
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

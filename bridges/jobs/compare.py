"""Compare mirrored topics with their source in a Kafka cluster, record by record; needs no Spark.

  stratalog compare trips,fares --with kafka-1:9092
  stratalog compare trips --with kafka-1:9092 --format confluent-avro --schema trip.avsc

Compares offset, timestamp, key, value and headers of every committed record in the offsets that both sides have.
If any record differs, the exit status is 1, and the report names the offsets. Records that the source has
compacted away are counted, but are not differences. For a topic with typed values, give the format and schema that
the mirror used; decoded values are compared. Needs confluent-kafka: pip install 'stratalog[kafka]'.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.bridges.jobs.mirror import SPECIAL, check_format
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    bootstrap = {**SPECIAL["bootstrap"], "flags": ("--with",), "required": True}
    add_declared(parser, "stratalog.bridges.kafka:Kafka.compare", special={**SPECIAL, "bootstrap": bootstrap})


def compare(job: Job) -> Report:
    check_format(job.arguments)
    report: Report = call(job.cluster().compare, job.arguments, topics=job.arguments.mirrored)
    return report


main = JobMain("compare", __doc__, arguments, compare, runs="driver")


if __name__ == "__main__":
    sys.exit(main())

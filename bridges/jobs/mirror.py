"""Mirror topics of a Kafka cluster: the same records at the same offsets.

  stratalog mirror --from kafka-1:9092 --topics trips,fares           what is new, once
  stratalog mirror --from kafka-1:9092 --topics trips --every 10s     again and again, until interrupted
  stratalog mirror --from kafka-1:9092 --topics trips --archive       records stay when the source's go
  stratalog mirror --from kafka-1:9093 --topics trips --config security.protocol=SSL --config ssl.ca.location=ca
  stratalog mirror --from kafka-1:9092 --topics trips --master spark://host:7077   by a cluster's executors
  stratalog mirror --from kafka-1:9092 --topics trips --format confluent-avro --schema trip.avsc
  stratalog mirror --end --topics trips                               a topic like any other from now on

Any number of mirrors may run, and be killed: the log's end is the place in the source. stratalog compare looks
at both sides. It takes confluent-kafka: pip install 'stratalog[kafka]'.
"""

from __future__ import annotations

import argparse
import sys
from typing import TypedDict

from stratalog import Report
from stratalog.bridges.formats.decoder import DECODED
from stratalog.jobs.arguments import add_dry_run, add_yes, check_options, count, duration, names, pair, size
from stratalog.jobs.repeat import once_or_every
from stratalog.jobs.run import Job, JobMain

_OF_A_RUN = ("config", "replication_factor", "archive", "no_groups", "throttle", "budget", "every", "format")


def add_source(parser: argparse.ArgumentParser) -> None:
    """``--topics``, ``--config`` of librdkafka, and how values are decoded."""
    parser.add_argument("--topics", dest="mirrored", metavar="A,B", type=names, required=True)
    parser.add_argument(
        "--config",
        metavar="KEY=VALUE",
        type=pair,
        action="append",
        default=[],
        help="one of librdkafka's, such as security.protocol=SASL_SSL, or schema.registry.url; any number of them",
    )
    parser.add_argument("--format", choices=DECODED, help="values are decoded, by --schema (default: bytes)")
    parser.add_argument(
        "--schema", metavar="FILE", help="of Avro; a type as DDL, of json; descriptors, of protobuf"
    )
    parser.add_argument("--message", metavar="NAME", help="which message of the descriptors the values are")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Groups, throttle and budget of a run, and whether another one follows."""
    parser.add_argument("--no-groups", action="store_true", help="leave offsets of consumer groups alone")
    parser.add_argument("--throttle", metavar="SIZE", type=size, help="at most these bytes a second (20MB)")
    parser.add_argument(
        "--budget", metavar="TIME", type=duration, help="begin no further piece after this time (5m)"
    )
    parser.add_argument("--every", metavar="TIME", type=duration, help="run again, this time after each run (10s)")


def check_format(given: argparse.Namespace) -> None:
    """Raises: InvalidCallError for a part of ``--format`` that is missing."""
    check_options(given, needs=[("format", "schema"), ("schema", "format"), ("message", "format")])


class ValueFormat(TypedDict):
    """Arguments of ``Cluster.mirror`` and ``Cluster.compare``."""

    value_format: str | None
    schema_file: str | None
    message: str | None


def format_of(given: argparse.Namespace) -> ValueFormat:
    """How values are decoded, as the door takes it."""
    return {"value_format": given.format, "schema_file": given.schema, "message": given.message}


def arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--from", dest="bootstrap", metavar="HOST:PORT", help="brokers of the source, with commas")
    what.add_argument("--end", action="store_true", help="the topics mirror no more: producers may append")
    add_source(parser)
    add_yes(parser)
    add_dry_run(parser, "say which topics and partitions would be made; read and append nothing")
    parser.add_argument("--replication-factor", metavar="N", type=count, help="of topics that are made")
    parser.add_argument(
        "--archive", action="store_true", help="of topics that are made: keep what the source deletes"
    )
    add_run(parser)


def mirror(job: Job) -> Report:
    given = job.arguments
    check_options(given, bars=[("end", *_OF_A_RUN)])
    check_format(given)
    if given.end:
        job.confirm(f"end the mirroring of {', '.join(given.mirrored)}, which cannot be begun again")
        return job.cluster().end_mirror(given.mirrored, dry_run=given.dry_run, check=False)

    def once() -> Report:
        return job.on_workers().mirror(
            given.bootstrap,
            given.mirrored,
            configs=dict(given.config),
            replication_factor=given.replication_factor,
            archive=given.archive,
            groups=not given.no_groups,
            **format_of(given),
            throttle=given.throttle,
            budget_s=given.budget,
            dry_run=given.dry_run,
            check=False,
        )

    return once_or_every("mirror", once, job.show_line, given.every)


main = JobMain("mirror", __doc__, arguments, mirror)


if __name__ == "__main__":
    sys.exit(main())

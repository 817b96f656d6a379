"""Mirror topics of a Kafka cluster: copy the same records to the same offsets.

  stratalog mirror trips,fares --from kafka-1:9092            new records, one run
  stratalog mirror trips --from kafka-1:9092 --every 10s      again and again, until interrupted
  stratalog mirror trips --from kafka-1:9092 --archive        keep records that the source deletes
  stratalog mirror trips --from kafka-1:9092 --as trips=rides    give it another name here
  stratalog mirror trips --from kafka-1:9093 --config security.protocol=SSL --config ssl.ca.location=ca
  stratalog mirror trips --from kafka-1:9092 --master spark://host:7077   on the executors of a cluster
  stratalog mirror trips --from kafka-1:9092 --format confluent-avro --schema trip.avsc
  stratalog mirror trips --end                                make it a topic like any other, for producers

Any number of mirrors may run and may be killed: the end of the log is the position in the source. stratalog
compare compares both sides. Needs confluent-kafka: pip install 'stratalog[kafka]'.
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
from stratalog.partitions.errors import InvalidCallError

_OF_MADE = ("replication_factor", "archive", "as")
_OF_A_RUN = ("config", *_OF_MADE, "no_groups", "throttle", "budget", "every", "format")


def add_source(parser: argparse.ArgumentParser) -> None:
    """The topics, ``--config`` of librdkafka, and how values are decoded."""
    parser.add_argument("mirrored", metavar="TOPICS", type=names, help="one topic, or several: a,b")
    parser.add_argument(
        "--config",
        metavar="KEY=VALUE",
        type=pair,
        action="append",
        default=[],
        help="a config of librdkafka, such as security.protocol=SASL_SSL, or schema.registry.url; repeatable",
    )
    parser.add_argument("--format", choices=DECODED, help="decode values by --schema (default: keep bytes)")
    parser.add_argument(
        "--schema", metavar="FILE", help="an Avro schema; for json a type as DDL; for protobuf a descriptor set"
    )
    parser.add_argument(
        "--message", metavar="NAME", help="with --format protobuf: the values' message type in the descriptor set"
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options for groups, throttle and budget of a run, and for repeated runs."""
    parser.add_argument("--no-groups", action="store_true", help="do not copy the offsets of consumer groups")
    parser.add_argument("--throttle", metavar="SIZE", type=size, help="copy at most SIZE per second (20MB)")
    parser.add_argument(
        "--budget", metavar="TIME", type=duration, help="begin no further piece of work after this time (5m)"
    )
    parser.add_argument(
        "--every", metavar="TIME", type=duration, help="run again TIME after the end of each run (10s)"
    )


def check_format(given: argparse.Namespace) -> None:
    """Raises: InvalidCallError if ``--format`` and ``--schema`` are not both given."""
    check_options(given, needs=[("format", "schema"), ("schema", "format"), ("message", "format")])


class ValueFormat(TypedDict):
    """Arguments of ``Cluster.mirror`` and ``Cluster.compare``."""

    value_format: str | None
    schema_file: str | None
    message: str | None


def format_of(given: argparse.Namespace) -> ValueFormat:
    """The decoding of values, as keyword arguments of ``Cluster.mirror`` and ``Cluster.compare``."""
    return {"value_format": given.format, "schema_file": given.schema, "message": given.message}


def arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--from", dest="bootstrap", metavar="HOST:PORT", help="brokers of the source, comma-separated"
    )
    what.add_argument(
        "--end", action="store_true", help="end the mirroring of the topics, so that producers may append"
    )
    add_source(parser)
    add_yes(parser)
    add_dry_run(parser, "list the topics and partitions that would be created; read and append nothing")
    parser.add_argument("--replication-factor", metavar="N", type=count, help="for topics that are created")
    parser.add_argument(
        "--as",
        metavar="SOURCE=NAME",
        type=pair,
        action="append",
        default=[],
        help="name of a topic that is created here; repeatable. Later runs know it",
    )
    parser.add_argument(
        "--archive", action="store_true", help="for topics that are created: keep records that the source deletes"
    )
    add_run(parser)


def mirror(job: Job) -> Report:
    given = job.arguments
    check_options(given, bars=[("end", *_OF_A_RUN)])
    check_format(given)
    if given.end:
        job.confirm(f"end the mirroring of {', '.join(given.mirrored)}, which cannot be restarted")
        return job.cluster().end_mirror(given.mirrored, dry_run=given.dry_run, check=False)

    given_names: list[tuple[str, str]] = vars(given)["as"]
    rename = dict(given_names)
    if len(rename) < len(given_names):
        raise InvalidCallError("--as names a topic of the source twice: it has one name here")

    def once() -> Report:
        return job.on_workers().mirror(
            given.mirrored,
            given.bootstrap,
            configs=dict(given.config),
            replication_factor=given.replication_factor,
            archive=given.archive,
            rename=rename,
            groups=not given.no_groups,
            **format_of(given),
            throttle_bytes_per_s=given.throttle,
            budget_s=given.budget,
            dry_run=given.dry_run,
            check=False,
        )

    return once_or_every("mirror", once, job.show_line, given.every)


main = JobMain("mirror", __doc__, arguments, mirror)


if __name__ == "__main__":
    sys.exit(main())

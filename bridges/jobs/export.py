"""Export topics, or ranges of them, to a Kafka cluster, every record once; needs no Spark.

  stratalog export trips,fares --to kafka-2:9092                        new records, at the same offsets, one run
  stratalog export trips --to kafka-2:9092 --every 10s                  again and again, until interrupted
  stratalog export trips --to kafka-2:9092 --new-offsets --map s3://lake/map   after existing records
  stratalog export trips --to kafka-2:9092 --new-offsets --name replay-7 --to-topic trips-test
      --start 2013-06-01 --end 2013-06-02 --pace 10                    one day, ten times as fast as it was
  stratalog export trips --to kafka-2:9092 --new-offsets --name rest --group dashboard
                                                                       the records that a group has not read yet

An export may be killed and repeated: its journal in the target, the topic stratalog-export.NAME.TOPIC, records
what it has written, and only its last run writes. If offsets are kept, stratalog compare compares both sides.
Needs confluent-kafka: pip install 'stratalog[kafka]'.
"""

from __future__ import annotations

import argparse
import sys

import stratalog
from stratalog import Report
from stratalog.bridges.jobs.mirror import add_run, add_source
from stratalog.jobs.arguments import add_dry_run, bound, count, name
from stratalog.jobs.repeat import once_or_every
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", dest="bootstrap", metavar="HOST:PORT", required=True, help="brokers of the target, comma-separated"
    )
    add_source(parser)
    add_dry_run(parser, "list the offsets that would be exported; write nothing")
    parser.add_argument("--name", metavar="NAME", type=name, help="name of the export (default: the cluster's id)")
    parser.add_argument(
        "--to-topic", metavar="NAME", type=name, help="name in the target, if one topic is exported"
    )
    parser.add_argument("--new-offsets", action="store_true", help="append to topics that may hold records")
    parser.add_argument(
        "--map",
        metavar="TABLE",
        help="a Delta table that maps offsets of the target to ours: a folder, or s3://...",
    )
    where = (
        "an offset, offsets by partition (0:1000,3:20), a position, first-at:TIME, or a time (bounds timestamps)"
    )
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--start", metavar="BOUND", type=bound, help=where)
    begin.add_argument("--group", metavar="NAME", help="start at the offsets of this consumer group")
    parser.add_argument("--end", metavar="BOUND", type=bound, help="as --start; default: the last stable offset")
    parser.add_argument(
        "--replication-factor", metavar="N", type=count, help="for topics that are created in the target"
    )
    parser.add_argument(
        "--pace", metavar="X", type=_speed, help="space records by their timestamps, X times as fast (1, 10x)"
    )
    add_run(parser)


def _speed(text: str) -> float:
    try:
        return float(text.removesuffix("x"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed: write it as 1, 0.5 or 10x") from error


def export(job: Job) -> Report:
    given = job.arguments

    def once() -> Report:
        return job.cluster().export(
            given.bootstrap,
            given.mirrored,
            configs=dict(given.config),
            name=given.name,
            target_topic=given.to_topic,
            new_offsets=given.new_offsets,
            start=given.start if given.group is None else stratalog.Committed(given.group),
            end=given.end,
            groups=not given.no_groups,
            offset_map=given.map,
            replication_factor=given.replication_factor,
            throttle_bytes_per_s=given.throttle,
            pace=given.pace,
            budget_s=given.budget,
            dry_run=given.dry_run,
            check=False,
        )

    return once_or_every("export", once, job.show_line, given.every)


main = JobMain("export", __doc__, arguments, export, runs="driver")


if __name__ == "__main__":
    sys.exit(main())

"""Export topics, or ranges of them, to a Kafka cluster, every record once; needs no Spark.

  stratalog export --to kafka-2:9092 --topics trips,fares              at the same offsets: what is new, once
  stratalog export --to kafka-2:9092 --topics trips --every 10s        again and again, until interrupted
  stratalog export --to kafka-2:9092 --topics trips --new-offsets --map s3://lake/map   behind what is there
  stratalog export --to kafka-2:9092 --topics trips --new-offsets --name replay-7 --to-topic trips-test
      --start 2013-06-01 --end 2013-06-02 --pace 10                    a day, ten times as fast as it was
  stratalog export --to kafka-2:9092 --topics trips --new-offsets --name rest --group dashboard
                                                                       what a group has not read yet

An export may be killed and repeated: what it has written is told by its journal there, the topic
stratalog-export.NAME.TOPIC, and only its last run writes. Where offsets are kept, stratalog compare looks at both
sides. It takes confluent-kafka: pip install 'stratalog[kafka]'.
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
        "--to", dest="bootstrap", metavar="HOST:PORT", required=True, help="brokers of the target, with commas"
    )
    add_source(parser)
    add_dry_run(parser, "say which offsets would be exported; write nothing")
    parser.add_argument("--name", metavar="NAME", type=name, help="of the export (default: the cluster's id)")
    parser.add_argument("--to-topic", metavar="NAME", type=name, help="of one topic: its name there")
    parser.add_argument("--new-offsets", action="store_true", help="append to topics that may hold records")
    parser.add_argument(
        "--map", metavar="TABLE", help="a Delta table of which offsets there are which here: a folder, or s3://..."
    )
    where = "an offset, offsets by partition (0:1000,3:20), a position, first-at:TIME, or a time (of timestamps)"
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--start", metavar="BOUND", type=bound, help=where)
    begin.add_argument("--group", metavar="NAME", help="start at the offsets of this consumer group")
    parser.add_argument("--end", metavar="BOUND", type=bound, help="likewise; default: the last stable offset")
    parser.add_argument("--replication-factor", metavar="N", type=count, help="of topics that are made there")
    parser.add_argument(
        "--pace", metavar="X", type=_speed, help="as far apart as the timestamps are, X times as fast (1, 10x)"
    )
    add_run(parser)


def _speed(text: str) -> float:
    try:
        return float(text.removesuffix("x"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no speed: write it as 1, 0.5 or 10x") from error


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
            throttle=given.throttle,
            pace=given.pace,
            budget_s=given.budget,
            dry_run=given.dry_run,
            check=False,
        )

    return once_or_every("export", once, job.show_line, given.every)


main = JobMain("export", __doc__, arguments, export, runs="driver")


if __name__ == "__main__":
    sys.exit(main())

"""Serve all topics to Kafka clients, which read them from either tier; needs no Spark.

  stratalog serve                                      at 127.0.0.1:9092, until interrupted
  stratalog serve --listen 127.0.0.1:19092             on another port
  stratalog serve --listen 0.0.0.0:9093 --advertise log.example.org:9093 --tls-cert host.pem --tls-client-ca ca.pem
  kcat -b 127.0.0.1:9092 -C -t trips -o beginning -e   an example client

The endpoint accepts no records. Consumers may commit offsets, and may share partitions as members of a group if
all members use the same endpoint. Everyone who can reach the address can read everything. If other machines can
reach it, use --tls-client-ca. Needs aiokafka: pip install 'stratalog[serve]'.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog import Report
from stratalog.jobs.arguments import check_options, count
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.run import Job, JobMain

if TYPE_CHECKING:
    from stratalog.bridges.serve.endpoint import KafkaEndpoint


def arguments(parser: argparse.ArgumentParser) -> None:
    address, file = {"metavar": "HOST:PORT"}, {"metavar": "FILE"}
    add_declared(
        parser,
        "stratalog.bridges.kafka:Kafka.serve",
        special={
            "listen": address,
            "advertise": address,
            "tls_cert": file,
            "tls_key": file,
            "tls_client_ca": file,
            "max_connections": {"type": count},
        },
    )


def serve(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=[("tls_key", "tls_cert"), ("tls_client_ca", "tls_cert")])
    endpoint: KafkaEndpoint = call(job.cluster().serve, given)
    with endpoint:
        host, port = endpoint.address
        print(f"bootstrap.servers={host}:{port}", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):  # the normal way to stop serving
            endpoint.wait()
    return endpoint.report()


main = JobMain("serve", __doc__, arguments, serve, runs="driver")


if __name__ == "__main__":
    sys.exit(main())

"""Serve all topics to Kafka clients, which read them from either tier; needs no Spark.

  stratalog serve                                      at 127.0.0.1:9092, until interrupted
  stratalog serve --listen 127.0.0.1:19092             at another port
  stratalog serve --listen 0.0.0.0:9093 --advertise log.example.org:9093 --tls-cert host.pem --tls-client-ca ca.pem
  kcat -b 127.0.0.1:9092 -C -t trips -o beginning -e   an example client

The endpoint is read-only: it accepts no records. Consumers may share partitions as members of a group, if all of
them use the same endpoint, and may commit offsets. Everyone who can reach the address can read everything: use
--tls-client-ca beyond this machine. Needs aiokafka: pip install 'stratalog[serve]'.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

from stratalog import Report
from stratalog.jobs.arguments import add_client_rack, check_options, count, duration
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:9092",
        help="the address to bind (default: 127.0.0.1:9092)",
    )
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="the address that clients connect to, if it is another one"
    )
    parser.add_argument(
        "--tls-cert",
        metavar="FILE",
        help="PEM file with the certificate of this server, and its key unless --tls-key is given",
    )
    parser.add_argument("--tls-key", metavar="FILE", help="PEM file with the key of --tls-cert")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", help="accept only clients whose certificate this CA signed"
    )
    parser.add_argument(
        "--poll",
        metavar="TIME",
        type=duration,
        default=1.0,
        help="how often to look for new records in partitions where clients wait (default: 1s)",
    )
    parser.add_argument(
        "--max-connections",
        metavar="N",
        type=count,
        default=100,
        help="refuse more than N connections at once (default: 100)",
    )
    add_client_rack(parser)


def serve(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=[("tls_key", "tls_cert"), ("tls_client_ca", "tls_cert")])
    endpoint = job.cluster().serve(
        given.listen,
        advertise=given.advertise,
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        tls_client_ca=given.tls_client_ca,
        poll_s=given.poll,
        max_connections=given.max_connections,
        client_rack=given.client_rack,
    )
    with endpoint:
        host, port = endpoint.address
        print(f"bootstrap.servers={host}:{port}", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):  # the normal way to stop serving
            endpoint.wait()
    return endpoint.report()


main = JobMain("serve", __doc__, arguments, serve, runs="driver")


if __name__ == "__main__":
    sys.exit(main())

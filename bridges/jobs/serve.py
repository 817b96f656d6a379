"""Serve all topics to clients of Kafka, which read them from either tier; needs no Spark.

  stratalog serve                                      at 127.0.0.1:9092, until interrupted
  stratalog serve --listen 127.0.0.1:19092             at another port
  stratalog serve --listen 0.0.0.0:9093 --advertise log.example.org:9093 --tls-cert host.pem --tls-client-ca ca.pem
  kcat -b 127.0.0.1:9092 -C -t trips -o beginning -e   what a client does then

Nobody writes records through it. Consumers may share partitions as members of a group, at one endpoint, and commit
offsets. All who reach the address can read everything: beyond this machine give
--tls-client-ca, too. It takes aiokafka: pip install 'stratalog[serve]'.
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
        "--listen", metavar="HOST:PORT", default="127.0.0.1:9092", help="(default: 127.0.0.1:9092)"
    )
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="what clients connect to, where that is another address"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate of this server, in PEM; with its key, or")
    parser.add_argument("--tls-key", metavar="FILE", help="... the key beside it")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", help="only clients with a certificate that this CA signed"
    )
    parser.add_argument(
        "--poll",
        metavar="TIME",
        type=duration,
        default=1.0,
        help="look so often at the end of a partition where clients wait (default: 1s)",
    )
    parser.add_argument(
        "--max-connections", metavar="N", type=count, default=100, help="refuse more at once (default: 100)"
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
        with suppress(KeyboardInterrupt):  # what was wanted: this is how one stops serving
            endpoint.wait()
    return endpoint.report()


main = JobMain("serve", __doc__, arguments, serve, runs="driver")


if __name__ == "__main__":
    sys.exit(main())

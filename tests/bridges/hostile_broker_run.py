"""``python -m tests.bridges.hostile_broker_run HOST:PORT``: make all requests of a mirror to its source, with
short timeouts and little memory. Prints the outcome as JSON; an error that is not one of stratalog's ends the
process.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable

from stratalog.bridges.mirror import kafka_source
from stratalog.bridges.mirror.source import SourceRange
from stratalog.partitions.errors import StratalogError

MOST_BYTES = 4 * 1024**3
PATIENCE_S = 0.6
KEYS = [("t", 0), ("t", 1)]


def main(bootstrap: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    kafka_source.TIMEOUT_S, kafka_source._PAUSE_S = PATIENCE_S, 0.05
    source = kafka_source.open_source(
        bootstrap,
        {
            "socket.timeout.ms": "600",
            "socket.connection.setup.timeout.ms": "1000",
            "reconnect.backoff.ms": "20",
            "reconnect.backoff.max.ms": "50",
            "metadata.max.age.ms": "500",
        },
    )
    found: dict[str, str] = {}

    def tried(what: str, call: Callable[[], object]) -> None:
        try:
            found[what] = type(call()).__name__
        except StratalogError as error:
            found[what] = error.code

    def read() -> int:
        records = 0
        positions = dict.fromkeys(KEYS, 0)
        reads = source.read({key: SourceRange(0, 50) for key in KEYS})
        for one in reads:
            if one.error is not None:
                assert isinstance(one.error, StratalogError)
                break
            assert one.key in positions
            assert one.position >= positions[one.key], "a reader goes back"
            positions[one.key] = one.position
            records += one.records.num_rows
            if records > 1000 or all(position >= 50 for position in positions.values()):
                break
        reads.close()
        return records

    tried("topics", lambda: source.topics(["t"]))
    tried("bounds", lambda: source.bounds(KEYS))
    tried("groups", lambda: source.group_offsets(["t"]))
    tried("read", read)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])

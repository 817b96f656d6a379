"""``python -m tests.unit.hostile_run FOLDER MAKER``: one of two topics is sound, and every copy of a file of the
other one is hostile; all readers run. Prints the outcome and the peak memory as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratalog.engine.driver.report import OperationFailedError
from stratalog.partitions.errors import StratalogError
from tests.unit import hostile_parquet
from tests.unit.cluster_harness import LiveCluster
from tests.unit.segments import records
from tests.unit.tampering import Spot

ROWS = 2_000


def fill(live: LiveCluster, topic: str) -> None:
    for first in range(0, 3 * ROWS, ROWS):
        headers = [[{"key": "h", "value": b"x"}]] * ROWS
        values = [b"%d" % (first + row) for row in range(ROWS)]
        batch = records(values, keys=[b"k"] * ROWS, headers=headers)
        live.cluster.append_batches(topic, {0: [batch]}).raise_for_failures()


def main(folder: str, maker: str) -> None:
    make: Callable[[bytes], bytes] = getattr(hostile_parquet, maker)
    live = LiveCluster(Path(folder), on_disk=True)
    for topic in ("bad", "worse", "good"):
        small = {"segment_merge_min_files": "2"} if topic == "bad" else {"segment_bytes": "1"}
        live.topic(topic, remote_storage_enable="true", **small)
        fill(live, topic)
    for topic in ("bad", "worse"):
        for broker in (1, 2, 3):
            place = Spot(live.store(broker), live.log(broker, topic).chain[1].file.object.name)
            place.replace(make(place.read()))
    cluster = live.driver()
    seen: dict[str, Any] = {}

    def tried(what: str, call: Callable[[], object]) -> None:
        try:
            found = call()
        except OperationFailedError as error:
            found = error.report
        except StratalogError as error:
            seen[what] = type(error).__name__
            return
        failures = getattr(found, "failures", ())
        seen[what] = sorted({failure.item.split()[0].split("-")[0] for failure in failures})

    tried("describe", lambda: cluster.describe("bad"))
    tried("plan_read", lambda: list(cluster.plan_read("bad")))
    tried("fetch bad", lambda: cluster.fetch("bad", 0, ROWS + 1, max_bytes=1000, timeout_s=1))
    tried("fetch before", lambda: cluster.fetch("bad", 0, ROWS - 1, max_bytes=10**9, timeout_s=1))
    tried("fetch behind", lambda: cluster.fetch("bad", 0, 2 * ROWS, timeout_s=1))
    tried("tail", lambda: list(cluster.tail("bad", start=ROWS, follow=False, timeout_s=1)))
    tried("times", lambda: list(cluster.offsets("bad", "max-timestamp")))
    tried("append", lambda: fill(live, "bad"))
    tried("replicate", cluster.replicate)
    tried("verify", cluster.verify)
    tried("verify deep", lambda: cluster.verify(deep=True))
    tried("merge", cluster.merge)
    tried("tier", cluster.tier)
    tried("retain", cluster.retain)
    tried("heal", cluster.heal)
    good = sum(table.num_rows for table in live.driver().tail("good", start="earliest", follow=False))
    status = Path("/proc/self/status").read_text()  # getrusage would include the parent
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"messages": seen, "good": good, "peak_bytes": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])

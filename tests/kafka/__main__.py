"""The campaign on three real brokers as a command: make brokers RECORDS=20000000 RUNS=100 SEED=1."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from bench.kafka_server import PINS
from stratalog.jobs.jars import fetch_jars, jar_folder
from tests.kafka.campaign import Campaign


def main() -> None:
    """Run the campaign. A fault ends the campaign, and the folder is kept."""
    parser = argparse.ArgumentParser(prog="tests.kafka", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="that producers write, in all topics")
    parser.add_argument("--kills", type=int, default=12, help="how often a mirror is killed")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    fetch_jars(jar_folder(), PINS)
    folder = Path(tempfile.mkdtemp(prefix="stratalog-brokers-"))
    try:
        counts = Campaign(folder, given.seed, lambda line: print(line, flush=True)).run(given.records, given.kills)
    except BaseException:
        print(f"seed {given.seed}: what is left of it is in {folder}")
        raise
    for what, count in counts.items():
        print(f"{what}: {count:,}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()

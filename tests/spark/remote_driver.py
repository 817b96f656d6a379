"""A driver in a separate process, with a session on a standalone cluster, which executes one call per line.

    python -m tests.spark.remote_driver MASTER CLUSTER_FILE GATES
Each line of standard input is a JSON object, ``{"call": ..., "arguments": {...}}``; the answer is one line of
standard output: the report's JSON, or ``{"raised": ...}``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from stratalog.engine.cluster.parts import with_parts
from tests.spark.gates import opener
from tests.spark.standalone import ROOT, read, session_settings, spark_environment


class RemoteDriver:
    """The driver as the test uses it: one call at a time."""

    def __init__(self, master: str, cluster_file: Path, gates: Path, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "tests.spark.remote_driver", master, str(cluster_file), str(gates)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=spark_environment({}),
            )

    def start(self, call: str, **arguments: Any) -> None:
        """Start a call without waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": call, "arguments": arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def report(self) -> dict[str, Any]:
        """The result of the call. Raises: AssertionError with the driver's error."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the driver has ended: {read(self._log)[-3000:]}"
        answer: dict[str, Any] = json.loads(line)
        assert "raised" not in answer, answer["raised"]
        return answer

    def run(self, call: str, **arguments: Any) -> dict[str, Any]:
        """Start, and wait for the report."""
        self.start(call, **arguments)
        return self.report()

    def end(self) -> None:
        """End the driver."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def main(master: str, cluster_file: str, gates: str) -> None:
    from stratalog import Cluster, OperationFailedError, spark_session

    spark = spark_session("driver", master=master, settings=session_settings())
    cluster = with_parts(Cluster, opener=opener(Path(gates))).open(cluster_file, spark)
    for line in sys.stdin:
        answer = json.loads(line)
        arguments = answer["arguments"]
        try:
            if answer["call"] == "append":
                source = spark.range(arguments.pop("start"), arguments.pop("end"), 1, 1)
                source = source.coalesce(1)  # the plan is not checked for its size
                frame = source.selectExpr("cast(id AS STRING) AS value", "id % 2 AS p")
                report = cluster.append(arguments.pop("topic"), frame, partition="p", **arguments)
            elif answer["call"] == "read":
                read_back = cluster.read(arguments["topic"]).orderBy("partition", "offset")
                rows = [[row.partition, row.offset, row.value.decode()] for row in read_back.collect()]
                print(json.dumps({"records": rows}), flush=True)
                continue
            else:
                report = getattr(cluster, answer["call"])(arguments.pop("topic"), **arguments)
            print(report.to_json(), flush=True)
        except OperationFailedError as error:
            print(error.report.to_json(), flush=True)
        except Exception:
            print(json.dumps({"raised": traceback.format_exc()}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Run jobs under spark-submit like the command ``stratalog``, one after the other, in one session.

    jobs_in_turn.py CALLS

``CALLS`` is a file with a JSON list of argument lists. For each, a line ``DONE`` and a JSON list: the exit status
and the report.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

from stratalog import load_cluster_file, spark_session
from stratalog.jobs.main import main

if __name__ == "__main__":
    roots = load_cluster_file(os.environ["STRATALOG_CLUSTER"]).roots
    spark = spark_session("jobs in turn", roots=roots)  # jobs use the existing session
    for call in json.loads(Path(sys.argv[1]).read_text()):
        with redirect_stdout(io.StringIO()) as output:
            status = main([*call, "--json"])
        print("DONE", json.dumps([status, json.loads(output.getvalue().splitlines()[-1])]), flush=True)
    spark.stop()

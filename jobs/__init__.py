"""Entry points for spark-submit and ``python -m``: arguments, a session, progress, an exit code.

Purpose
    One module per operation of the cluster, each a thin ``main(argv) -> int``: parse, open the
    cluster, take a session, call ``engine``, say what was done and what it cost. ``session`` builds
    the Spark session, ``java`` finds a JVM that Spark can run on, ``jars`` fetches what pyspark lacks.

May not know
    How anything is stored, replicated or tiered: that is ``engine`` and below.
"""

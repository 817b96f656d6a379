"""Entry points for spark-submit and ``python -m``: arguments, a session, progress, an exit code.

Purpose
    One module per operation of the cluster, each a thin ``main(argv) -> int``: parse, open the
    cluster, take a session, call ``engine``, say what was done and what it cost. ``main`` has them all
    under one command.

    run, arguments, progress   the frame: exit status, command lines, the bar on a terminal
    payloads, colours          records as tail shows them; reports in colour
    repeat, ending             the loop of --every; signals that end it, or a job
    streaming                  a stream as a run of appends
    session, java, jars        Spark: its session, the JVM it runs on, what pyspark lacks
    hadoop                     how Spark reaches the buckets

    spark-submit puts this folder first on ``sys.path``: no module here may have a name of the standard
    library's.

May not know
    How anything is stored, replicated or tiered: that is ``engine`` and below.
"""

if __name__ != "stratalog.jobs":
    raise ImportError('write "stratalog.jobs", not "jobs": under two names each module would be there twice')

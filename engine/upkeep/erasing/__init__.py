"""Permanently erases the records of keys.

plan           the partitions and keys of an erasure, and the topics that are refused
tasks          find the records, remove them, delete the files that had them
erase          the operation
steps          the tasks, for partitions with and without snapshots
snapshot_tasks  the tasks for partitions with snapshots
snapshot_run   the steps of a run for these, up to the commit
look           finds the copies on one root that may still have erased records
partition      one partition in an erasure
commits        commits the erasures of partitions
copies         all copies of the files of topics, on every root
certificate    the outcome, as JSON, without keys
report         the report, with the certificate
remote         erases the records from the remote logs, before the leaders do
remote_clean   deletes the objects that had records, and the history of the tables
published      erases from the tables in which topics publish their snapshots
iceberg        the Iceberg table of a topic, and its history
remote_copies  all copies of the segments of topics in the remote tier
verify         reads every copy again, and searches it for the keys
verify_snapshots  reads every snapshot again, for verify
verify_iceberg  reads the metadata of the Iceberg tables, for verify
"""

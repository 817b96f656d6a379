"""Erasing the records of keys for good.

plan           the partitions and keys of an erasure, and the topics that are refused
former_tier    the topics that are no longer tiered, with what is left in the remote tier
tasks          find the records, remove them, delete the files that had them
erase          the operation
partition      one partition in a run of it
commits        commits the erasures of partitions
copies         all copies of the files of topics, on every root
certificate    the outcome, as JSON, without keys
report         the report, with the certificate
remote         the remote logs lose the records before the leaders do
remote_clean   deletes the objects that had records, and the history of the tables
iceberg        the Iceberg table of a topic, and its history
remote_copies  all copies of the segments of topics in the remote tier
verify         reads every copy again, and looks for the keys
verify_iceberg  reads the metadata of the Iceberg tables, for verify
"""

"""Erasing the records of keys for good.

plan           the partitions and keys of an erasure, and the topics that are refused
tasks          find the records, remove them, delete the files that had them
erase          the operation
partition      one partition in a run of it
commits        commits the erasures of partitions
copies         all copies of the files of topics, on every root
certificate    the outcome, as JSON, without keys
verify         reads every copy again, and looks for the keys
"""

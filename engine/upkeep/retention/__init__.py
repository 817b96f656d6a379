"""Retention of the log, and deletion of files without an owner.

retain          local and total retention, and deletion after the delay
tasks, remote   its tasks for leaders and replicas, and for the remote tier
delete_records  moves log starts, by hand
vacuum          litter in the remote tier and on brokers; sweep: folders on brokers without an owner
"""

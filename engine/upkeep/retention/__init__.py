"""Retention of the log, and deletion of files without an owner.

retain          local and total retention, and deletion after the delay
tasks           the tasks of retain for leaders and replicas
remote          the part of retain that concerns the remote tier
delete_records  moves log starts, by hand
vacuum          deletes litter in the remote tier and on brokers
sweep           deletes folders on brokers without an owner
"""

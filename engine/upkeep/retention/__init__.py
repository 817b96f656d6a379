"""Retention of the log, and the deletion of files that nobody owns.

retain          local and total retention, and what may be deleted after its delay
tasks, remote   ... by leaders and replicas, and of the remote tier
delete_records  logs start later, by hand
vacuum          litter in the remote tier and on brokers; sweep: folders on brokers that nobody owns
"""

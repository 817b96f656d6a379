"""Replicas and leaders.

replicate      copies leaders' logs to followers, advances the high watermark, expands the ISR
planned        the files that followers lack, and the requests to copy them, for a dry run
syncing        replicate's work on one partition, and on all within a budget; proves how far a log is committed
merge          merges small appends into segments
compact        keeps only the last record of each key (cleanup.policy=compact)
compact_remote  compacts the remote tier, before the leaders
compact_estimate  the work and the requests of a compaction, for a dry run
keep_short     merges the logs to which a driver has appended, and deletes replaced files
elect          elects preferred leaders, leaders by hand, unclean leaders
candidates     possible leaders of an unclean election, and preferred leaders; short local logs
reassign       moves replicas to other brokers
reassignments  lists the reassignments in progress
letting_go     checks the remaining copies before a replica is removed
bootstrap      rebuilds a broker that lost its storage (KIP-1023)
"""

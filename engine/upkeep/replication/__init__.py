"""Replicas and leaders.

replicate      copies leaders' logs to followers, advances the high watermark, expands the ISR
planned        the files that followers lack, and the requests to copy them, for a dry run
proving        proves how far a log is committed, and records this offset in the metadata
syncing        replicate's work on one partition, and on all within a budget
merge          merges small appends into segments
compact        keeps only the last record of each key (cleanup.policy=compact)
compact_remote  compacts the remote tier, before the leaders
compact_estimate  the work and the requests of a compaction, for a dry run
keep_short     merges the logs to which a driver has appended, and deletes replaced files
elect          elects preferred leaders, leaders by hand, unclean leaders
candidates     possible leaders of an unclean election, and the records that each would lose
short_local_logs  replicas that hold far fewer records locally than others, because the rest is tiered
reassign       moves replicas to other brokers
reassignments  lists the reassignments in progress
letting_go     checks the remaining copies before a replica is removed
bootstrap      rebuilds a broker that lost its storage (KIP-1023)
"""

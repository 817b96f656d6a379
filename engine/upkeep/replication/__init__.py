"""Replicas and leaders.

replicate      leaders to followers, the high watermark, the expansion of the ISR
planned        the files that followers lack, and the requests to copy them, for a dry run
proving        proves how far a log is committed, and records it in the metadata
syncing        replicate's work on one partition, and on all within a budget
merge          small appends into segments
compact        the last record of each key stays (cleanup.policy=compact)
compact_remote  compact's work on the remote tier, which comes first
compact_estimate  the work of a compaction, for a dry run
keep_short     merge the logs to which a driver has appended, and delete replaced files
elect          preferred leaders, leaders by hand, unclean leaders
candidates     possible leaders, and the records that each would lose
short_local_logs  replicas that hold much less locally than others, because the rest is tiered
reassign       replicas to other brokers; reassignments: the reassignments in progress
letting_go     checks before a replica is removed
bootstrap      rebuilds a broker that lost its storage (KIP-1023)
"""

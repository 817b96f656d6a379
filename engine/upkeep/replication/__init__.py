"""Replicas and leaders.

replicate      leaders to followers, the high watermark, the expansion of the ISR
proving        how far a log is committed, with what the metadata know of it
syncing        its work on one partition, and on all within a budget
merge          small appends into segments
shorten        merge one log, and delete what is replaced; keep_short: behind a driver's appends
elect          preferred leaders, leaders by hand, unclean ones
candidates     possible leaders, and the loss with each
short_local_logs  replicas that hold much less locally than others, because the rest is tiered
reassign       replicas to other brokers; reassignments: how far those in progress are
letting_go     what has to be elsewhere before a replica is let go
bootstrap      a broker that lost its storage comes back (KIP-1023)
"""

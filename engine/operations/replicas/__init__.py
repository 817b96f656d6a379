"""Who holds what, and who leads.

replicate      leaders to followers, the high watermark, the expansion of the ISR
in_sync        proposals to change an ISR
damaged        a leader that is damaged resigns
merge          small appends into segments
elect          preferred leaders, leaders by hand, unclean ones
candidates     who could lead, and at what loss
thin           replicas that hold much less locally than others, because the rest is tiered
reassign       replicas to other brokers; reassignments: how far those in progress are
bootstrap      a broker that lost its storage comes back (KIP-1023)
"""

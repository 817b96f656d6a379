"""Records into the log.

append       a DataFrame or batches, shared out to partitions, to their leaders
earlier      what is known of an append that is tried again: who has it, among how many it was dealt out
rounds       each partition until it is appended, under whatever leader it has by then
acknowledge  the second half, for all partitions at once: what of it is acknowledged, and what only perhaps
answers      what the report says of each partition, and of which attempts
"""

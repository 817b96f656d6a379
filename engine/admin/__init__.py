"""Administration: changes to topics, groups and voters, and the tables that describe them.

topics             creates, alters and deletes topics
groups             lists, resets and deletes consumer groups, and reports their lag, also as metrics
quorum             describes, adds, removes and signs the metadata voters
describe           every replica of topics
describe_cluster   brokers, topics, and one topic
history            the events of operations
system_tables      cluster state as tables with declared columns, for SQL
"""

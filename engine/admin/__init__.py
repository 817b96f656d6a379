"""Questions and changes of an operator, and the tables that answer.

topics             created, altered, deleted
groups             consumer groups: listed, moved, deleted; lag_metrics: their lag as metrics
quorum             the metadata voters: described, added, removed, signed
describe           every replica of topics; describe_cluster: brokers, topics, one topic
history            the events of operations
system_tables      the same, groups and files as tables with declared columns, for SQL
"""

"""The tier of a Kafka cluster (KIP-405), read from its bucket or folder while its brokers stay idle.

tier                      ``KafkaTier``: plans a read, and gives a DataFrame or Arrow
segment, segment_states   what ``__remote_log_metadata`` says of each upload; ``fields`` (its bytes)
metadata_log              that topic from the files of its log
layout                    how a plugin lays segments out: the interface; ``local``, ``aiven`` (with
                          ``aiven_manifest`` and ``aiven_keys``)
lineage, plan             which segments count, and which offsets are unclear
indexes, times            Kafka's indexes of a segment; bounds that are times
committed                 transactions that were aborted, and those that are open where the tier ends
batches, columns          record batches, checked; their records as columns
reading                   the range of a segment that a task reads
"""

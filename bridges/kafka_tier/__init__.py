"""The tier of a Kafka cluster (KIP-405), read from its bucket or folder while its brokers stay idle.

segment, segment_states   what ``__remote_log_metadata`` says of each upload; ``fields`` (its bytes)
metadata_log              that topic from the files of its log
layout                    how a plugin lays segments out: the interface; ``local``, ``aiven`` (with
                          ``aiven_manifest`` and ``aiven_keys``)
batches, columns          record batches, checked; their records as columns
"""

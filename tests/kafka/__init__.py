"""The same short scripts run with the engine and with a real Kafka broker: offsets, errors, and the results of
readers.

    log                       the operations of a script, with plain answers
    our_log, kafka_log        them here, and in Kafka (``kafka_clients``: librdkafka, made quick; ``kafka_wire``:
                              Kafka's own classes, for requests that no client of Kafka can send)
    three_brokers             a partition of which brokers go away, here and in Kafka
    kafka_cluster             three brokers and a controller, with tiers, to be killed
    mirrored                  a stratalog cluster that mirrors a Kafka's topics
    campaign                  topics filled, brokers and mirrors killed, all records compared; a command, too
    both                      the two side by side: the trace that both have, or each its own
    test_random               random scripts, step by step
    test_differences          where the answers differ on purpose, both of them, and why; those of producers and of
                              tiers stand beside what is the same

Not compared: members of groups; the partition of a key, which comes from Spark's hash here; versions of requests
(KIP-1242, KIP-1319).
"""

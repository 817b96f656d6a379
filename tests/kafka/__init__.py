"""The same short scripts run with the engine and with a real Kafka broker: offsets, errors, and the results of
readers.

    log                       the operations of a script, with plain answers
    our_log, kafka_log        these operations here and in Kafka (``kafka_clients``: librdkafka with short waits;
                              ``kafka_wire``: Kafka's own classes, for requests that no client of Kafka can send)
    three_brokers             a partition whose brokers stop one after the other, here and in Kafka
    kafka_cluster             three brokers and a controller, with tiers, which tests kill
    mirrored                  a stratalog cluster that mirrors a Kafka's topics
    campaign                  fills topics, kills brokers and mirrors, and compares all records; also a command
    both                      runs a script in both, and returns their common trace or both traces
    test_random               random scripts, step by step
    test_differences          intentional differences, with both answers and the reasons; those of producers and of
                              tiers are in the tests of these

These are not compared: members of groups; the partition of a key, which comes from Spark's hash here; versions of
requests (KIP-1242, KIP-1319).
"""

"""The least rights of a role on the storage of a cluster, in the words of each storage.

role        the roles, and the kinds of storage
layout      where the cluster and the topics lie: from the cluster file and the metadata; pure
statements  what a role needs, and where: pure
aws, azure, gcs, posix
            ... as a policy of S3, role definitions and conditions, bindings with conditions, a shell script
printed     from a role and topics to the text

A cluster has no server, so only its storage can refuse. SECURITY.md, "Rights", has the rights by operation;
``statements`` is the sum of its rows by role, and the tests hold it to a real server of S3 and a real file system.
"""

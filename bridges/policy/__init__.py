"""The minimal permissions of a role on the storage of a cluster, as a policy for each kind of storage.

role        the roles, and the kinds of storage
layout      the folders of the cluster and its topics, from the cluster file and the metadata; pure
statements  the permissions of a role, and their places; pure aws, azure, gcs, posix
            the policy for S3, Azure, Google, or folders (a shell script)
printed     the text of a policy

A cluster has no server, so only its storage can deny access. SECURITY.md, "Rights", has the rights by operation;
``statements`` combines these rights by role. Tests check the policies on a real S3 server and a real file system.
"""

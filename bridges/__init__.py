"""Optional parts outside the log: copies from and to Kafka, payload formats, the page, policies.

    kafka      ``cluster.mirror``, ``compare``, ``export``, ``serve``
    mirror     topics of a Kafka cluster, record for record
    live       a mirrored topic and its source as one relation
    export     copies to a Kafka cluster
    serve      topics of this cluster for clients of Kafka, by Kafka's protocol
    formats    bytes of records as values of a declared type: Avro, JSON, Protobuf
    state      ``cluster.report``, ``serve_page``
    page       the state of the cluster as a page of HTML
    rights     ``cluster.policy``
    policy     the minimal permissions of a role, as a policy for each kind of storage
    server     the code that the page and ``serve`` share
    jobs       the jobs of the bridges

A bridge imports the core. The core imports no bridge, and finds bridges by name
(``stratalog.engine.config.bridges``). Appends, reads, upkeep and their tests work without this folder.
"""

if __name__ != "stratalog.bridges":
    raise ImportError(
        'import "stratalog.bridges", not "bridges": under two names each module would be loaded twice'
    )

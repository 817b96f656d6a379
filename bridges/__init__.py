"""Parts beside the log: how topics come from Kafka and go there, payload formats, the page, policies of rights.

    kafka      ``cluster.mirror``, ``compare``, ``export``, ``serve``
    mirror     topics of a Kafka cluster, record for record
    live       such a topic and its source as one relation
    export     ... and back to one
    serve      topics of this cluster for clients of Kafka, by Kafka's protocol
    formats    bytes of records as values of a declared type: Avro, JSON, Protobuf
    state      ``cluster.report``, ``serve_page``
    page       the state of the cluster as a page of HTML
    rights     ``cluster.policy``
    policy     the least rights of a role, in the words of each storage
    jobs       their jobs

A bridge imports the core; the core imports no bridge, and finds it by name (``stratalog.engine.config.bridges``).
Without this folder appends, reads, upkeep and their tests work as they do with it.
"""

if __name__ != "stratalog.bridges":
    raise ImportError(
        'import "stratalog.bridges", not "bridges": under two names each module would be loaded twice'
    )

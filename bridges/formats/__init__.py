"""Decodes bytes of records to values of a declared type, and keeps the bytes that do not match the type.

decoder        the interface of all formats
avro           Avro values, plain or after the id of a schema, as Confluent's serializers write them
registry       the schemas of these ids
registry_http  one request to the registry
json_text      JSON texts, by a declared type
protobuf       Protobuf messages, by a file of descriptors
shown          how tail decodes the values of a format
opening        opens a format by its name and schema file
typed          columns of decoded values, and the bytes that could not be decoded

A decoder is strict: it does not decode a value if it would have to omit or round a part of it. A decoder can be
pickled.
"""

"""Bytes of records as values of a declared type, and what becomes of those that are not of it.

decoder        the seam of all formats
avro           values of Avro, plain or behind the id of a schema, as Confluent's serializers write them
registry       the schemas of those ids
registry_http  one request to it
json_text      texts of JSON, by a declared type
protobuf       messages of Protobuf, by a file of descriptors
shown          how tail decodes the values of a format
opening        a format by its name and its schema's file
typed          columns of decoded values, with the bytes of those that could not be decoded beside them

A decoder is strict: what it would have to leave out, or to round, it does not decode. It can be pickled.
"""

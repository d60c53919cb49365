"""Decode payloads (JSON, CBOR) to typed columns, as JSON Schemas declare them.

The decoders are Arrow and plain Python; only `columns` names Spark's types.
"""

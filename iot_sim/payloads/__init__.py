"""Payloads as bytes: JSON, CBOR, Sparkplug B, and templates of a scenario.

A model declares fields and measures values; it knows no format. `layouts` encodes them.
`sparkplug` is a protocol of its own, used by the Sparkplug model alone.
"""

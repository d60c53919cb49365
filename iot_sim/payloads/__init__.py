"""Payloads as bytes: JSON, CBOR, Sparkplug B, and templates of a scenario's own.

A model knows fields and values, never a format. `layouts` turns a report of declared fields
into bytes; `sparkplug` is a protocol of its own, which only the Sparkplug model speaks.
"""

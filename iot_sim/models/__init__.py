"""The device models."""

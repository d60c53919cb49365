"""The device models, one module each, and the catalogue that finds them by name.

A model is pure: no socket, no clock, no randomness but that of its seed.
"""

"""Scenarios: the fleets, faults, load and limits of a run, read from TOML files.

The scenarios that come with FleetMQ are the `.toml` files of this folder. Planning is pure: the
same scenario and seed give the same devices, faults and load.
"""

"""The fleet simulator: seeded device models that load a broker and give a verdict on it.

Rules of this package: a device is pure and follows from its seed; sockets and timers
live in the module that drives the fleet. It speaks to a broker over MQTT alone and imports
nothing of it but the codec and the QoS machines, so it tests any broker.
"""

"""The fleet simulator: seeded device models that load a broker and judge how it behaves.

A device model is pure: what it does follows from its seed. Sockets and timers are in `fleet`.
The simulator talks to a broker over MQTT alone, so it tests any broker; of FleetMQ it imports
only the codec, the QoS state machines and modules that parse URLs and TOML tables.
"""

"""Everything that touches the operating system: sockets, the event loop, configuration.

Rules of this room: it feeds the core with bytes and time and carries its bytes away; it
decides nothing about MQTT. asyncio lives here and in `admin`, nowhere else in the broker.
"""

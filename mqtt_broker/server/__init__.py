"""The operating system: sockets, the event loop, configuration, threads and files.

The server feeds the core with bytes and time and carries its bytes away; it decides nothing about
MQTT. asyncio is used here and in `http_api`, nowhere else in the broker.
"""

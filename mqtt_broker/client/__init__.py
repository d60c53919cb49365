"""The MQTT client of our own tools: `pub`, `sub`, the Spark bridge and the MQTT sink.

protocol    one connection as a state machine: bytes and time in, events and bytes out
blocking    the same with a socket (TCP, TLS, WebSocket, Unix) and a clock
url         broker URLs
errors      what can go wrong
"""

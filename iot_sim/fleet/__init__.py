"""The MQTT clients of a simulated fleet, and the sockets they share."""

"""A bridge from any MQTT broker into a log."""

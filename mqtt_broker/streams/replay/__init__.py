"""MQTT clients that read streams."""

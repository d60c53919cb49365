"""MQTT users and load shapes for Locust."""

"""MQTT users and load shapes for Locust, used by `iot_sim/locustfile.py`."""

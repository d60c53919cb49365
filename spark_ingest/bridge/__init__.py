"""A bridge from any MQTT broker into a log. No Spark: an MQTT client and a log writer."""

"""The MQTT client of the command line tools."""

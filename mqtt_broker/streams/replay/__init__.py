"""Send records of streams to the MQTT clients that subscribe to them."""

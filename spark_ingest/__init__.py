"""Spark jobs on the telemetry log.

Rules of this room: the only one that imports pyspark. It reads the log's files and never
speaks MQTT. A reader raises where reading on would lose data, and a sink is idempotent by
query and batch.
"""

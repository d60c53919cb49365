"""The telemetry log as a Spark data source."""

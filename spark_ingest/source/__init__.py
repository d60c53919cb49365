"""The telemetry log as a Spark data source: options, planning of batches, tasks that read."""

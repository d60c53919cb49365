"""Run a job on Spark: session, source, job, sinks, progress."""

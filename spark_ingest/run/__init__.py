"""Run a job on Spark."""

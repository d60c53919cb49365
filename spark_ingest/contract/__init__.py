"""The contracts of jobs and sinks."""

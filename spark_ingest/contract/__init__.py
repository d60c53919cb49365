"""The contracts of jobs and sinks, for those of FleetMQ and for your own."""

"""Small files that are read and written whole. Imports no other package of FleetMQ."""

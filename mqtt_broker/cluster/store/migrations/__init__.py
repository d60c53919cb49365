"""Steps from one schema of the cluster to the next, run by Alembic (`schema.prepare`)."""

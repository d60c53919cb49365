"""Steps from one schema to the next, run by Alembic (`sessions.store.schema.upgrade`).

A step has two parts, `tables` and `journal`. On PostgreSQL both run in one database, on SQLite each
in its own file. A released step never changes; a change of the schema is a new step. New databases
are created without the steps (`sessions.store.schema.create`).
"""

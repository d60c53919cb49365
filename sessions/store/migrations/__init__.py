"""Steps from one schema to the next, run by Alembic (`sessions.store.schema.upgrade`).

A step has two parts, `tables` and `journal`. On PostgreSQL both run in one database, on
SQLite each file runs its own. A step stays as it is once released; what changes is a new one.
"""

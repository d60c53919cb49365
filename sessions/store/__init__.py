"""The store: all SQL of the broker state, with its threads, files, tables and migrations."""

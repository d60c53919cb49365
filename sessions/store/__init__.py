"""All SQL of the broker state: threads, files, tables, migrations."""

"""Sinks for results: SQL, Parquet, MQTT, the console, or a class of your own.

Every sink is idempotent by (query, batch): after a crash Spark runs the last batch again, and
what the sink already has, it does not take twice. `sink` has the contract and finds the sink for
a URL.

    sink      what a sink is, and a batch of results
    sql       any database SQLAlchemy knows: upsert, with a ledger in the same transaction
    tables    how results become tables of SQL
    parquet   directories, one a batch
    mqtt      messages: retained, expiring, with an id of their own
    console   for looking
"""

"""Read the files of a log as batches of records, in any process, without locks.

Readers never change a file and need no broker. `arrow` imports pyarrow; nothing else does.
"""

"""Configuration: files, environment and options, read into plain frozen data.

`config` reads all sources; each other module reads one table of the file. `tables` checks keys
and values, imports nothing of FleetMQ, and serves the simulator too. An error names the file, the
key, the wrong value and what would be right. Of the files that a configuration names only JSON
Schemas are read here; certificates, accounts and keys belong to `server.net` and `security`.
"""

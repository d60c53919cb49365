"""The tables of a cluster in PostgreSQL, and the execution of the rules' statements there.

schema       tables, their version, and the name of the cluster that they belong to
queries      the SQL of a statement
connection   a batch of statements in one round trip, and how a connection fails
executor     a thread for a connection, which executes whole transactions
"""

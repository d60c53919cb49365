"""Small files that are read and written whole, and the errors of files that hold secrets.

Imports no other package of FleetMQ.
"""

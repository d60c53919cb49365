"""The content of a number: the broker's core, its journal as groups, its sessions as rows.

    hosted_broker   what `Hosting` and `Claims` ask, answered by a core and its journal

Nothing here has a clock, a socket or a thread: time comes from whoever hosts, and statements go to
whoever executes them. The core's time is the database's clock, as far as the host knows it: times
that are stored mean the same wherever a session moves.
"""

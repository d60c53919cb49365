"""Several nodes over one PostgreSQL: the rules, without a database, a bus or a clock of their own.

The transactions are generators that yield statements as data and are sent their rows, so the same
rules run on PostgreSQL and on the model of it in `tests/sim/cluster`, which loses connections,
commits and time. Clustering is not offered yet: no module of the broker imports this package.

    frames    what nodes send each other, as bytes
    bus       these frames over NATS: the only part with sockets
    content   what a number holds: a broker's core, its journal and its tables
"""

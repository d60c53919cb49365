"""A load generator: connections, publishers and subscribers at a rate, counted second by second.

    plan        what one run does
    counts      what happened, which adds up over seconds and processes
    load        the clients of one process
    run         a run in one process or several, with a row of figures each second
    table       the rows on a terminal and in a CSV file

It measures a broker; it judges nothing. For what was lost, repeated or late, play a scenario.
"""

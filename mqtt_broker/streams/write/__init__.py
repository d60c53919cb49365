"""Write messages into the files of a log, and maintain these files. One process writes a log.

    topic_writer         the core's interface: which streams a message goes to
    writer               carry messages from the event loop to the store's writer thread
    log stream partition    create, change and delete streams; append batches
    recovery             open a partition after a crash
    retention compaction    remove old segments, rewrite segments with the last value of each key

Nothing here sends a message to a client: that is `streams.replay`.
"""

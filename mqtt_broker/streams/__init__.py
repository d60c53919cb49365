"""The telemetry log: streams of messages in partitions, on disk, with offsets.

Rules of this room: files and threads' locks, but no socket, no loop, no SQL and no clock; time
comes in as microseconds of Unix time. What a stream is for, who may read it and when it is
written is decided by those who call. One process writes (`log`, `writer`), any number read
(`source`, `reader`), in that process or in another, and all of them read files only; `remote`
reads what a broker on another machine serves. What talks to a socket is `connection` alone, by
http.client, and it waits by the clock.

    batch builder         the bytes of a batch, and the columns of one that is being filled
    disk names            the calls that change the disk, what files are called
    segment index catalog the batches of a file; where an offset or a time is in it; sealed files
    partition recovery    one partition: written to, rolled, cut back; opened after a crash
    stream log writer     partitions with one epoch; all streams; the way from the loop to the disk
    source reader         finding places, reading on from them
    retention compaction  what is given up
    offsets settings      what people write
    partitioners times    which partition, and when the device says it was
    remote connection     the same from another machine; HTTP
    replay                MQTT clients that read: the broker's replay door, and what it is made of:
    starts pages takers       where one begins, what a thread reads, at which pace it is sent
    consumers                 groups, who has which partition, what fails
    ahead notices letters     bounds, what clients are told, what is given up; figures of all that
    wire                  what both ends of that agree on
    verify arrow parquet  tools: looking for damage, rows; columns for Arrow, and for files

`arrow` and `parquet` need pyarrow, which the broker does not: nothing else here imports it.
"""

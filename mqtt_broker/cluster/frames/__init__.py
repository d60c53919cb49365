"""The frames that nodes send each other over the bus, as bytes and back.

The bus may lose, repeat, delay and reorder frames, and others may use it, too. So a frame has an
authentication code, made with a secret that the cluster's database holds, and says which number
sent it under which epoch, and to which. A reader returns a frame, or the reason why it drops it: no
bytes make it raise.

    layout    the header, the kinds, the authentication code
    bodies    what the kinds hold
    writer    makes frames
    reader    checks frames
    repeats   the frames of a sender that have come
    batches   gathers entries for each node into frames of about 32 KB
    versions  which version all nodes can read
"""

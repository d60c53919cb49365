"""The flight recorder: what was decided about each message and client, in bounded memory.

It is always on. The core calls `Recorder` (in `recorder`) where it decides; everything else here
reads. Entries are cells of fixed size in byte arrays (`segments`), and a cell is a run: equal
decisions within a second are one cell that is extended in place (`runs`). Drops, refusals and
connections have a ring of their own, of which each client has a share (`evidence`).

Pure: time is the argument `now`; the same calls give the same answers. Compiled, except for the
modules that write sentences. A query never guesses: what was overwritten or is not certain is left
out, and every answer says how far back the recorder sees.
"""

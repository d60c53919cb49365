"""The format of a log: bytes of batches and segments, names of files, offsets, settings, errors.

Files are written only through `disk`, which tests replace to fail or to crash at any call. `write`,
`read` and `replay` decide when files are written and read.
"""

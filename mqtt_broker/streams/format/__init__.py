"""The format of a log: bytes of batches and segments, names of files, offsets, settings, errors.

Files are written through `disk` alone, which tests replace to fail or to crash at any call. What is
written when, and who reads it, is decided in `write`, `read` and `replay`.
"""

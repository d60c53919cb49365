"""Errors of files and databases that hold users, rules, keys and bans.

    FileError     a file, or a row of a table, is invalid
    Unavailable   a database does not answer

Their text is one line for the operator and holds no secret.
"""

from __future__ import annotations


class FileError(ValueError):
    """A file or a table is invalid."""


class Unavailable(Exception):
    """Accounts or rules cannot be looked up at the moment."""

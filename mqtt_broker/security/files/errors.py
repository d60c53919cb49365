"""What goes wrong with what we read.

    FileError     a file of ours, or a row of a table, is not what it should be
    Unavailable   a database does not answer

Their text is one line for the operator and holds no secret.
"""

from __future__ import annotations


class FileError(ValueError):
    """What is wrong with a file or a table."""


class Unavailable(Exception):
    """Accounts or rules cannot be looked up now."""

"""Groups of the journal in format 2: programs that read format 1 alone are to refuse by name.

Without a step of its own they would take the journal for damaged, and advise to salvage it.
"""

from __future__ import annotations

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Change nothing: groups of both formats stand in the same table."""

"""Groups of the journal in format 2, so that programs that read only format 1 refuse by version.

Without this step they would take the journal for damaged and advise `--recover`.
"""

from __future__ import annotations

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Change nothing: groups of both formats are in the same table."""

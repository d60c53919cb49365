"""How many examples try a property: a part in the fast tests, all in `make test-examples`.

They are the same ones in each run, however slow the machine is: a new seed belongs to the fuzzers.
"""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import settings

PART: Final = 4
_IS_WHOLE: Final = os.environ.get("TESTS_EXAMPLES") == "all"


def examples(count: int = 100, **more: Any) -> settings:
    """Return settings for a property that `count` examples prove, and a quarter of them guards."""
    return settings(
        max_examples=count if _IS_WHOLE else max(1, count // PART),
        derandomize=True,
        deadline=None,
        database=None,
        print_blob=True,
        **more,
    )

"""`fleetmq ctl` asks for paths that the API has, and imports little before it asks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, cast

from mqtt_broker.cli import ctl_access, ctl_actions, ctl_lists, ctl_live, ctl_users
from mqtt_broker.http_api.http_server import all_operations
from mqtt_broker.http_api.request.access import Access
from mqtt_broker.http_api.request.http_limits import HttpLimits
from mqtt_broker.http_api.request.middleware import Site

ROOT: Final = Path(__file__).parents[2]
# What only a broker, or a command on a stopped broker's state, imports: 0.3 s of CPU time.
HEAVY: Final = ("sqlalchemy", "sessions", "mqtt_broker.server", "mqtt_broker.core")
_HOLE: Final = re.compile(r"\{[^}]*\}")


def served() -> set[str]:
    with ThreadPoolExecutor(1) as pool:
        site = Site(cast(Any, None), None, pool, HttpLimits(), Access(), True, lambda line: None)
        found = [one.path for one in all_operations(site)]
    return {_HOLE.sub("{}", path).removeprefix("/api/v1") for path in found}


def asked() -> set[str]:
    """Return the texts of these modules that are paths of the API."""
    found = set()
    for module in (ctl_access, ctl_actions, ctl_lists, ctl_live, ctl_users):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        for node in ast.walk(tree):
            text = ""
            if isinstance(node, ast.JoinedStr):
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "{}"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            if re.fullmatch(r"(/[a-z{}-]+)+", text):
                found.add(text)
    parts = {f"/clients/{{}}/{part}" for part in ("subscriptions", "inflight", "queue", "events")}
    actions = {f"/clients/{{}}/{act}" for act in ("kick", "expire", "clear-queue")}
    return (found | parts | actions) - {"/s", "/kick", "/packets", "/clients/{}/{}"}


def test_every_path_is_served() -> None:
    assert asked() - served() == set()


def test_a_command_that_asks_a_broker_imports_no_database_and_no_server() -> None:
    script = (
        "import sys; from mqtt_broker.cli.main import main; "
        "assert main(['ctl', 'clients', '--api', 'http://127.0.0.1:1']) == 1; "
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [] and "Connection refused" in done.stderr

"""The libraries of the WebSocket listener, imported while another thread imports them."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The thread is half way through aiohttp when the main thread begins with it.
TWO_IMPORTS = """
import sys, threading
from importlib.abc import MetaPathFinder

half_way, go_on = threading.Event(), threading.Event()
main = threading.main_thread()

class Pause(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "aiohttp.client" and threading.current_thread() is not main:
            half_way.set()
            go_on.wait(1.0)
        elif name.startswith("aiohttp.") and threading.current_thread() is main:
            go_on.set()

errors = []
threading.excepthook = lambda found: errors.append(found.exc_value)
sys.meta_path.insert(0, Pause())
thread = threading.Thread(target=lambda: __import__("mqtt_broker.http_api.pages.starting"))
thread.start()
assert half_way.wait(60)
from mqtt_broker.server.net import websocket_library
import mqtt_broker.server.net.websocket
thread.join(60)
print(errors, websocket_library.slow_because)
"""


@pytest.mark.parametrize("first", ["websocket_library", "websocket"])
def test_the_http_server_may_import_aiohttp_at_the_same_time(first: str) -> None:
    script = TWO_IMPORTS.replace("import websocket_library", f"import {first}, websocket_library")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.returncode) == ("[] \n", 0), done.stderr

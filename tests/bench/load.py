"""`make load`: a broker of our own under Locust, headless; a failed request fails the run."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCUSTFILE = ROOT / "iot_sim" / "locustfile.py"
SCENARIO = "fleet_tracking"  # no sleepers and no dead spots: every user is busy all the time


def main() -> int:
    parser = argparse.ArgumentParser(description="Load a broker with Locust, headless.")
    parser.add_argument("--command", default=f"{sys.executable} -m mqtt_broker.cli")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--scenario", default=SCENARIO)
    parser.add_argument("--html", default="", help="Locust's own report")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = shlex.split(args.command)
        broker = subprocess.Popen(
            [*command, "broker", "--port", "0", "--data-dir", folder],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            return load(broker, args)
        finally:
            broker.terminate()
            broker.communicate(timeout=30)


def load(broker: subprocess.Popen[str], args: argparse.Namespace) -> int:
    assert broker.stdout is not None
    line = broker.stdout.readline()
    port = re.search(r"127\.0\.0\.1:(\d+)", line)
    if port is None:
        print(f"load: the broker did not start: {line}", file=sys.stderr)
        return 1
    print(line.strip(), flush=True)
    command = [
        sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary",
        "-u", str(args.users), "-r", str(max(1, args.users // 4)), "-t", f"{args.seconds}s",
        "--host", f"mqtt://127.0.0.1:{port[1]}", "--sim-scenario", args.scenario,
        "--exit-code-on-error", "1",
    ]  # fmt: skip
    if args.html:
        command += ["--html", args.html]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())

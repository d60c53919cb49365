"""`make load`: a broker of our own under Locust, headless; a failed request fails the run."""

from __future__ import annotations

import argparse
import csv
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCUSTFILE = ROOT / "iot_sim" / "locustfile.py"
MEANINGS = {
    "connect": "from connecting to CONNACK",
    "session": "a session that the broker had to have, or not to have, after a reconnect",
    "subscribe": "from SUBSCRIBE to SUBACK",
    "publish": "from PUBLISH to its last acknowledgement; at QoS 0 until it is handed over",
    "deliver": "from the send of a device to its arrival at a subscriber",
    "command": "from a command to the response of the device",
    "connection": "a connection that the broker ended",
}
UNTIMED = ("session", "connection")
SCENARIO = "fleet_tracking"  # no sleepers and no dead spots: every user is busy all the time


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="Load a broker with Locust, headless."
    )
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
            return load(broker, args, f"{folder}/figures")
        finally:
            broker.terminate()
            broker.communicate(timeout=30)


def load(broker: subprocess.Popen[str], args: argparse.Namespace, figures: str) -> int:
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
        "--exit-code-on-error", "1", "--csv", figures,
    ]  # fmt: skip
    if args.html:
        command += ["--html", args.html]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = subprocess.run(command, env=environment).returncode
    stats = Path(f"{figures}_stats.csv")
    if stats.exists():
        with stats.open(newline="") as file:
            rows = list(csv.DictReader(file))
        print("\n".join(explain(rows, args.users, args.seconds, args.scenario)))
    return code


def explain(rows: list[dict[str, str]], users: int, seconds: int, scenario: str) -> list[str]:
    """Say in a few lines what Locust's figures mean, and whether the run is good."""
    lines = [
        f"load: {users} users with devices of {scenario} for {seconds} s; a request is one step:"
    ]
    failed = 0
    for row in rows:
        count, failures = int(row["Request Count"]), int(row["Failure Count"])
        if row["Name"] == "Aggregated" or not count:
            continue
        failed += failures
        times = (
            ""
            if row["Name"] in UNTIMED
            else (f", median {row['50%']} ms, 99 % within {row['99%']} ms")
        )
        bad = f", {failures:,} FAILED" if failures else ""
        lines.append(f"  {row['Name']:<14} {count:>9,}{bad}{times}: {meaning(row['Name'])}")
    lines += [
        "  The times contain the users' own work in Python, on the broker's cores: compare them",
        "  between runs. For the broker alone use `fleetmq bench`, for a verdict `fleetmq sim`.",
    ]
    lines.append(
        f"load: FAILED, {failed:,} requests failed: the table of errors above has their reasons"
        if failed
        else "load: passed, no request failed: nothing was refused, repeated or out of order"
    )
    return lines


def meaning(name: str) -> str:
    """Return what a kind of request measures."""
    return MEANINGS.get(name.partition(" qos")[0].strip(), "a step of a user")


if __name__ == "__main__":
    sys.exit(main())

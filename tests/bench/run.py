"""`make bench`: the broker beside mosquitto under the same load, as a table of ratios.

    python tests/bench/run.py COMPARE [options for it]

COMPARE is a script that drives brokers side by side and prints, for each, CPU microseconds
a message (`--json` gives the samples); `BENCH_COMPARE` names it too. Without one, the
benchmarks that need nothing else run: what a PUBLISH costs in the core, and topic matching.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLEETMQ = pathlib.Path(sys.executable).with_name("fleetmq")
MOSQUITTO_CONF = """\
allow_anonymous true
persistence false
log_dest none
connection_messages false
sys_interval 0
max_inflight_messages 0
max_queued_messages 0
"""


def compare(script: str, options: list[str]) -> int:
    """Run the comparison, then print mosquitto's and our CPU time and their ratio."""
    mosquitto = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if mosquitto is None:
        print("bench: there is no mosquitto to compare with", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        conf = pathlib.Path(folder) / "mosquitto.conf"
        conf.write_text(MOSQUITTO_CONF)
        samples = pathlib.Path(folder) / "samples.json"
        ours = f"{FLEETMQ} broker --port {{port}} --durability memory --log-level warning"
        theirs = f"{mosquitto} -p {{port}} -c {conf}"
        command = [sys.executable, script, "--json", str(samples), *options]
        code = subprocess.call([*command, f"mosquitto={theirs}", f"fleetmq={ours}"])
        if code == 0:
            print_ratios(json.loads(samples.read_text()))
        return code


def print_ratios(samples: dict[str, list[dict[str, float]]]) -> None:
    scenarios = dict.fromkeys(key.split("|")[0] for key in samples)
    print(f"\n{'scenario':14} {'mosquitto':>10} {'fleetmq':>10} {'ratio':>7}  lost, reordered")
    for name in scenarios:
        ours, theirs = samples[f"{name}|fleetmq"], samples[f"{name}|mosquitto"]
        if name.startswith("idle"):
            kb = statistics.median(run["kb_per_conn"] for run in ours)
            print(f"{name:14} {kb:.2f} KB a connection")
            continue
        cpu = [
            statistics.median(run.get("cpu_us_per_msg", float("nan")) for run in runs)
            for runs in (theirs, ours)
        ]
        bad = sum(run.get("lost", 1) + run.get("out_of_order", 1) for run in ours)
        print(f"{name:14} {cpu[0]:10.2f} {cpu[1]:10.2f} {cpu[1] / cpu[0]:7.2f}  {bad:g}")


def main() -> int:
    script = os.environ.get("BENCH_COMPARE", "")
    options = sys.argv[1:]
    if options and not options[0].startswith("-"):
        script, options = options[0], options[1:]
    if script:
        return compare(script, options)
    here = pathlib.Path(__file__).parent
    codes = [
        subprocess.call([sys.executable, str(here / name)], cwd=ROOT)
        for name in ("core.py", "match.py")
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())

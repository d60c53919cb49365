"""`fleetmq sim`: run a scenario against any MQTT broker and judge the result.

    fleetmq sim list
    fleetmq sim run SCENARIO --broker mqtt://127.0.0.1:1883 [--report out.json] [--html out.html]

Exit codes: 0 all limits hold, 1 some do not, 2 the scenario or the command line is wrong, or no
broker answers; then nothing was sent.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from iot_sim.judge.outcome import Sample
from iot_sim.judge.verdict import LIMITS, judge, number
from iot_sim.models.catalogue import models
from iot_sim.report import report
from iot_sim.report.progress import Progress
from iot_sim.run import processes
from iot_sim.scenarios.file import load, ready_scenarios
from iot_sim.scenarios.scenario import Scenario, ScenarioError
from mqtt_broker.cli.errors import DONE, FAILED, Failure, UsageError

BROKER_DEFAULT: Final = "mqtt://127.0.0.1:1883"
WORKERS_MAX: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run_it = actions.add_parser("run", help="run a scenario against a broker")
    run_it.add_argument(
        "scenario",
        metavar="SCENARIO",
        help="a file, or the name of one that comes with the simulator",
    )
    run_it.add_argument(
        "--broker",
        default=BROKER_DEFAULT,
        metavar="URL",
        help=f"URL of the broker ({BROKER_DEFAULT})",
    )
    run_it.add_argument("--cafile", default="", metavar="FILE", help="trust these certificates")
    run_it.add_argument("--insecure", action="store_true", help="do not check the certificate")
    run_it.add_argument("--seed", type=_seed, metavar="N", help="seed, instead of the scenario's")
    run_it.add_argument(
        "--devices",
        type=_whole,
        metavar="N",
        help="number of devices in all, instead of the scenario's",
    )
    run_it.add_argument(
        "--duration",
        type=_seconds,
        metavar="S",
        help="length of the run in seconds; the scenario is scaled to it",
    )
    run_it.add_argument(
        "--workers", type=_whole, default=1, metavar="N", help="number of processes (1)"
    )
    run_it.add_argument(
        "--pid",
        type=_whole,
        metavar="PID",
        help="process id of the broker, to measure its CPU and memory",
    )
    run_it.add_argument("--report", metavar="FILE", help="write the report as JSON")
    run_it.add_argument("--html", metavar="FILE", help="write the report as an HTML page")
    run_it.add_argument("--quiet", action="store_true", help="print only the result")
    run_it.add_argument("--check", action="store_true", help="check the scenario and exit")
    actions.add_parser("list", help="list scenarios, models and limits")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        return _list()
    try:
        scenario = load(args.scenario).resized(args.devices, args.duration)
        if args.seed is not None:
            scenario = replace(scenario, seed=args.seed)
        if args.workers > WORKERS_MAX:
            raise UsageError(f"--workers is 1 to {WORKERS_MAX}, not {args.workers}")
        for path in (args.report, args.html):
            _check_writable(path)
        broker = processes.parse_broker(args.broker, ca_file=args.cafile, is_insecure=args.insecure)
        if args.check:
            print(f"{scenario.name}: {scenario.device_count:,} devices,"
                  f" up to {scenario.rate_per_s:,.0f} messages a second,"
                  f" {scenario.duration_s:g} s: the scenario is valid")  # fmt: skip
            return DONE
        return _run(args, scenario, broker)
    except (ScenarioError, processes.SetupError) as error:
        raise UsageError(str(error)) from None
    except processes.RunError as error:
        raise Failure(str(error)) from None


def _run(args: argparse.Namespace, scenario: Scenario, broker: processes.Broker) -> int:
    progress = Progress(scenario, sys.stderr, is_terminal=sys.stderr.isatty())
    on_second: Callable[[Sample], None] = _ignore if args.quiet else progress.put
    try:
        outcome = processes.run(
            scenario, broker, workers=args.workers, pid=args.pid, on_second=on_second
        )
    finally:
        progress.close()
    verdict = judge(outcome, scenario.limits)
    if args.report:
        data = report.to_data(scenario, outcome, verdict, broker=str(broker), workers=args.workers)
        Path(args.report).write_text(json.dumps(data, indent=1) + "\n")
    if args.html:
        page = report.to_html(scenario, outcome, verdict, broker=str(broker), workers=args.workers)
        Path(args.html).write_text(page)
    for line in report.summary_lines(scenario, outcome, verdict):
        print(line)
    return DONE if verdict.passed else FAILED


def _ignore(sample: Sample) -> None:
    """Print nothing, for --quiet."""


def _check_writable(path: str | None) -> None:
    """Raise UsageError before the run for a report that cannot be written after it."""
    if path is None:
        return
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"{path}: No such file or directory")
    if Path(path).is_dir() or not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise UsageError(f"{path}: not a writable file")


def _list() -> int:
    print("scenarios (fleetmq sim run NAME):")
    for name, path in ready_scenarios().items():
        scenario = load(str(path))
        print(f"  {name:22} {scenario.summary}")
        print(
            f"  {'':22} {scenario.device_count:,} devices, {scenario.duration_s:g} s,"
            f" up to {scenario.rate_per_s:,.0f} messages a second"
        )
    print("\nmodels ([[fleets]] model = NAME):")
    known = models()
    shared = set.intersection(*({one.name for one in info.options} for info in known.values()))
    for name, info in known.items():
        own = [option.name for option in info.options if option.name not in shared]
        print(f"  {name:22} {info.summary}")
        print(f"  {'':22} payloads: {', '.join(info.payloads)}; options: {', '.join(own)}")
    print(f"  {'(every model)':22} options: {', '.join(sorted(shared))}")
    print("\nlimits ([limits]; defaults in brackets):")
    for name, limit in LIMITS.items():
        default = "" if limit.default is None else f" ({number(limit.default)})"
        print(f"  {name:28} {limit.help}{default}")
    return DONE


def _seed(text: str) -> int:
    return _number(text, 0, 2**63 - 1, "a whole number, 0 or more")


def _whole(text: str) -> int:
    return _number(text, 1, 2**31, "a whole number, 1 or more")


def _number(text: str, low: int, high: int, what: str) -> int:
    try:
        found = int(text)
    except ValueError:
        found = low - 1
    if not low <= found <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return found


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 1.0 <= found <= 31 * 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 1 or more")
    return found

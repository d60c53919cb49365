"""`fleetmq sim`: run a scenario against any MQTT broker and judge the result.

    fleetmq sim list
    fleetmq sim run SCENARIO --broker mqtt://127.0.0.1:1883 [--report out.json] [--html out.html]
    fleetmq sim merge REPORT... [--html out.html]
    fleetmq sim compare OLD.json NEW.json [--tolerance PERCENT]

Exit codes: 0 all limits hold, 1 some do not, 2 the scenario or the command line is wrong, or no
broker answers; then nothing was sent. 130 (143 after SIGTERM) the run was interrupted, whatever the
limits say.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from iot_sim.judge.outcome import Outcome, Sample
from iot_sim.judge.verdict import LIMITS, Verdict, judge, number
from iot_sim.models.catalogue import models
from iot_sim.report import compare, files, report, share
from iot_sim.report.progress import Progress
from iot_sim.run import processes
from iot_sim.run.process import WorkerShare
from iot_sim.scenarios.file import load, ready_scenarios
from iot_sim.scenarios.scenario import Scenario, ScenarioError
from mqtt_broker import interrupts
from mqtt_broker.cli.errors import DONE, FAILED, INTERRUPTED, Failure, UsageError
from mqtt_broker.cli.numbers import real, whole

BROKER_DEFAULT: Final = "mqtt://127.0.0.1:1883"
WORKERS_MAX: Final = 64
SHARES_MAX: Final = 1000
_SEED: Final = whole(0, 2**63 - 1, "a whole number, 0 or more")
_COUNT: Final = whole(1, 2**31, "a whole number, 1 or more")
_SECONDS: Final = real(1.0, 31 * 86_400, "a number of seconds, 1 or more")


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
    run_it.add_argument(
        "--insecure", action="store_true", help="do not check the broker's certificate"
    )
    run_it.add_argument("--cert", default="", metavar="FILE", help="certificate of every device")
    run_it.add_argument("--key", default="", metavar="FILE", help="private key of the certificate")
    run_it.add_argument("--seed", type=_SEED, metavar="N", help="seed, instead of the scenario's")
    run_it.add_argument(
        "--devices",
        type=_COUNT,
        metavar="N",
        help="number of devices in all, instead of the scenario's",
    )
    run_it.add_argument(
        "--duration",
        type=_SECONDS,
        metavar="S",
        help="length of the run in seconds; the scenario is scaled to it",
    )
    run_it.add_argument(
        "--workers", type=_COUNT, default=1, metavar="N", help="number of processes (1)"
    )
    run_it.add_argument(
        "--pid",
        type=_COUNT,
        metavar="PID",
        help="process id of the broker, to measure its CPU and memory",
    )
    run_it.add_argument(
        "--share",
        type=_share,
        metavar="K/N",
        help="play share K of N, each on a machine of its own; `sim merge` reads the reports",
    )
    run_it.add_argument(
        "--start-at",
        type=_time,
        metavar="TIME",
        help="let the devices begin at this time (ISO 8601), with the other shares",
    )
    run_it.add_argument(
        "--keep-retained",
        action="store_true",
        help="leave the messages that the devices retained; they are cleared otherwise",
    )
    _add_reports(run_it)
    run_it.add_argument("--quiet", action="store_true", help="print only the result")
    run_it.add_argument("--check", action="store_true", help="check the scenario and exit")
    merge_them = actions.add_parser("merge", help="make one verdict of the reports of all shares")
    merge_them.add_argument("reports", nargs="+", metavar="REPORT", help="JSON report of a share")
    _add_reports(merge_them)
    compare_them = actions.add_parser("compare", help="compare two reports; exit code 1 if worse")
    compare_them.add_argument("old", metavar="OLD.json", help="a report of an earlier run")
    compare_them.add_argument("new", metavar="NEW.json", help="a report of a later run")
    compare_them.add_argument(
        "--tolerance",
        type=_percent,
        default=0.1,
        metavar="PERCENT",
        help="how much worse a figure may be (10)",
    )
    actions.add_parser("list", help="list scenarios, models and limits")


def _add_reports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--report", metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the report as an HTML page")
    parser.add_argument("--junit", metavar="FILE", help="write the verdict as JUnit XML, for CI")
    parser.add_argument("--csv", metavar="FILE", help="write the figures of each second as CSV")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        return _list()
    if args.action == "compare":
        return _compare(args)
    if args.action == "merge":
        return _merge(args)
    try:
        scenario = load(args.scenario).resized(args.devices, args.duration)
        if args.seed is not None:
            scenario = replace(scenario, seed=args.seed)
        if args.keep_retained:
            scenario = replace(scenario, keep_retained=True)
        if args.workers > WORKERS_MAX:
            raise UsageError(f"--workers is 1 to {WORKERS_MAX}, not {args.workers}")
        if args.share and not args.report:
            raise UsageError("--share needs --report FILE, which fleetmq sim merge reads")
        if args.start_at is not None and args.start_at < time.time():
            raise UsageError("--start-at: this time is over")
        _check_reports(args)
        broker = processes.parse_broker(
            args.broker,
            ca_file=args.cafile,
            is_insecure=args.insecure,
            cert_file=args.cert,
            key_file=args.key,
        )
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
    number, count = args.share or (1, 1)
    try:
        outcome = processes.run(
            scenario,
            broker,
            workers=args.workers,
            pid=args.pid,
            share=WorkerShare(number - 1, count),
            start_at=args.start_at,
            on_second=on_second,
        )
    finally:
        progress.close()
    verdict = judge(outcome, scenario.limits)
    data = report.to_data(scenario, outcome, verdict, broker=str(broker), workers=args.workers)
    if args.share:
        data["share"] = share.share_data(number, count, outcome)
    return _finish(args, data, scenario, outcome, verdict)


def _merge(args: argparse.Namespace) -> int:
    _check_reports(args)
    try:
        merged = share.merge({path: _read_report(path) for path in args.reports})
    except compare.ReportError as error:
        raise UsageError(str(error)) from None
    played, outcome, verdict = merged.scenario, merged.outcome, merged.verdict
    data = report.to_data(played, outcome, verdict, broker=merged.broker, workers=merged.workers)
    return _finish(args, data, played, outcome, verdict)


def _finish(
    args: argparse.Namespace,
    data: dict[str, Any],
    scenario: report.Played,
    outcome: Outcome,
    verdict: Verdict,
) -> int:
    """Write the reports and print the result; return the exit code."""
    broker, workers = data["broker"], data["workers"]
    if args.report:
        Path(args.report).write_text(json.dumps(data, indent=None if "share" in data else 1) + "\n")
    if args.html:
        page = report.to_html(scenario, outcome, verdict, broker=broker, workers=workers)
        Path(args.html).write_text(page)
    if args.junit:
        Path(args.junit).write_text(files.to_junit(scenario, outcome, verdict, broker=broker))
    if args.csv:
        Path(args.csv).write_text(files.to_csv(outcome.series), newline="")
    for line in report.summary_lines(scenario, outcome, verdict):
        print(line)
    if verdict.was_interrupted:
        return interrupts.exit_code(interrupts.asked()) if interrupts.asked() else INTERRUPTED
    return DONE if verdict.passed else FAILED


def _compare(args: argparse.Namespace) -> int:
    try:
        old, new = (_read_report(path) for path in (args.old, args.new))
        found = compare.compare(old, new, args.tolerance)
        notes = list(compare.remarks(old, new))
    except compare.ReportError as error:
        raise UsageError(str(error)) from None
    except (KeyError, TypeError, AttributeError):
        raise UsageError(f"{args.old} or {args.new}: an incomplete report") from None
    for line in compare.lines(found, notes, args.tolerance):
        print(line)
    return FAILED if any(one.is_worse for one in found) else DONE


def _read_report(path: str) -> Mapping[str, Any]:
    """Read a JSON report. Raises ReportError, and UsageError for a file that is not JSON."""
    try:
        return compare.check_report(json.loads(Path(path).read_text()), path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None


def _ignore(sample: Sample) -> None:
    """Print nothing, for --quiet."""


def _check_reports(args: argparse.Namespace) -> None:
    for path in (args.report, args.html, args.junit, args.csv):
        _check_writable(path)


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
        try:
            scenario = load(str(path))
        except ScenarioError as error:  # it needs an extra
            print(f"  {name:22} cannot run here: {str(error).removeprefix(f'{path}: ')}")
            continue
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


def _percent(text: str) -> float:
    try:
        found = float(text.removesuffix("%"))
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= 1000.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 1000")
    return found / 100


def _share(text: str) -> tuple[int, int]:
    number, separator, count = text.partition("/")
    with contextlib.suppress(ValueError):
        if separator and 1 <= int(number) <= int(count) <= SHARES_MAX:
            return int(number), int(count)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a share such as 1/3, of at most {SHARES_MAX}"
    )


def _time(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time such as 2026-01-01T12:00:00Z"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()

"""`fleetmq spark`: run jobs on the telemetry log, or bring messages of another broker into one.

    fleetmq spark list
    fleetmq spark run JOB --log DIR|URL --sink URL [--checkpoint DIR] [--once] [--master local[*]]
    fleetmq spark run JOB --log DIR|URL --sink URL --from TIME --to TIME
    fleetmq spark bridge ...

`run` reads as a stream until SIGINT or SIGTERM; with `--once` until the end of the log; with
`--to` it reads a range of the log as a batch. Exit codes: 0 done, 1 the job failed, 2 the command
line is wrong or Spark is not installed; then nothing was read.

Spark is imported only when a job runs.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from mqtt_broker import interrupts
from mqtt_broker.cli.errors import DONE, Failure, UsageError
from spark_ingest.jobs import SUMMARIES, load
from spark_ingest.run import spark_session

if TYPE_CHECKING:
    from spark_ingest.run.runner import Plan, Progress

CHECKPOINTS: Final = "fleetmq-spark"
LINE_EVERY_S: Final = 5.0
_LISTED_MAX: Final = 20


class _JobParser(argparse.ArgumentParser):
    """Parser of one job; it loads the job, and adds its options, only when that job is named."""

    job = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.job:
            job, self.job = self.job, ""
            self._ask(job)
        return super().parse_known_args(args, namespace)

    def _ask(self, job: str) -> None:
        try:
            spark_session.check(needs_java=False)
        except spark_session.NotThere as error:
            self.exit(2, f"{self.prog}: {error}\n")
        options = self.add_argument_group(f"options of {job}")
        for one in dataclasses.fields(load(job).settings):
            about = one.metadata
            said = f"{about['help']} ({about['default']})" if about["default"] else about["help"]
            options.add_argument(
                about["flag"], dest=f"job_{one.name}", metavar="X", help=said.replace("%", "%%")
            )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="list the jobs")
    run_it = actions.add_parser("run", help="run a job")
    jobs = run_it.add_subparsers(
        dest="job", required=True, metavar="JOB", parser_class=_parser_class(parser)
    )
    for name, summary in SUMMARIES.items():
        one = jobs.add_parser(name, help=summary)
        _add_run_arguments(one)
        assert isinstance(one, _JobParser)
        one.job = name
    bridge = actions.add_parser("bridge", help="copy messages of any MQTT broker into a local log")
    importlib.import_module("spark_ingest.bridge.bridge").add_bridge_arguments(bridge)


def _parser_class(parser: argparse.ArgumentParser) -> type[argparse.ArgumentParser]:
    """Make a parser class that reports errors as its parent does."""
    return type("JobParser", (_JobParser, type(parser)), {})


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_argument_group("input")
    source.add_argument(
        "--log", required=True, metavar="DIR|URL", help="the log's directory, or the broker's URL"
    )
    source.add_argument("--stream", metavar="NAME", help="stream to read (default: the only one)")
    source.add_argument(
        "--token",
        default="",
        metavar="TOKEN",
        help="token, when --log is a URL (FLEETMQ_HTTP_TOKEN)",
    )
    source.add_argument("--from", dest="start", metavar="WHERE",
                      help="earliest, latest, offsets, or an ISO time (earliest)")  # fmt: skip
    source.add_argument(
        "--to", dest="end", metavar="WHERE", help="like --from: run as a batch that ends there"
    )
    source.add_argument(
        "--parse",
        choices=("auto", "json", "cbor", "none"),
        help="format of the payloads (by the stream)",
    )
    source.add_argument(
        "--schema", metavar="FILE", help="JSON Schema to use instead of the stream's"
    )
    source.add_argument("--max-rows", type=int, metavar="N", help="rows of a micro-batch at most")
    source.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="continue when retention has removed unread messages",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--sink", action="append", required=True, metavar="URL",
        help="sqlite:///F, postgresql://..., parquet:DIR, mqtt://..., console:",
    )  # fmt: skip
    output.add_argument(
        "--table-prefix", default="", metavar="TEXT", help="prefix of SQL table names"
    )
    output.add_argument(
        "--registry", metavar="URL", help="database of the device registry (default: the SQL sink)"
    )
    output.add_argument(
        "--registry-table",
        default="devices",
        metavar="NAME",
        help="table of the registry (devices)",
    )
    execution = parser.add_argument_group("execution")
    execution.add_argument(
        "--checkpoint", metavar="DIR", help=f"directory of the checkpoint ({CHECKPOINTS}/...)"
    )
    execution.add_argument("--once", action="store_true", help="stop at the end of the log")
    execution.add_argument(
        "--drain", action="store_true",
        help="with --once: close open windows at the end; the checkpoint ends there, too",
    )  # fmt: skip
    execution.add_argument(
        "--accept-loss", action="store_true",
        help="continue from a checkpoint with which Spark has dropped rows that were not late",
    )  # fmt: skip
    execution.add_argument(
        "--trigger", default="1s", metavar="T", help="interval between micro-batches (1s)"
    )
    execution.add_argument(
        "--master", default="local[*]", metavar="URL", help="Spark master (local[*])"
    )
    execution.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="K=V",
        help="configuration of Spark; may be repeated",
    )
    execution.add_argument("--py-files", action="append", default=[], metavar="ZIP",
                     help="code for the executors (deploy/README.md)")  # fmt: skip
    execution.add_argument("--quiet", action="store_true", help="print no progress")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        width = max(map(len, SUMMARIES))
        for name, summary in SUMMARIES.items():
            print(f"{name:{width}}  {summary}")
        return DONE
    if args.action == "bridge":
        code: int = importlib.import_module("spark_ingest.bridge.bridge").run_bridge(args)
        return code
    interrupts.before_exit(_kill_children)
    try:
        spark_session.check()
    except spark_session.NotThere as error:
        raise Failure(str(error), 2) from None
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    from spark_ingest.contract.job import OptionError
    from spark_ingest.contract.sink import SinkError
    from spark_ingest.run import runner

    try:
        with _sinks(args) as sinks:
            plan = _plan(args, sinks)
            return _with_spark(args, plan)
    except (OptionError, SinkError, spark_session.NotThere, runner.ReadError) as error:
        raise UsageError(str(error)) from None
    except runner.RunError as error:
        raise Failure(str(error)) from None


@contextlib.contextmanager
def _sinks(args: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    from spark_ingest.contract.sink import open_sink

    with contextlib.ExitStack() as stack:
        sinks = []
        for url in args.sink:
            sink = open_sink(url, prefix=args.table_prefix)
            stack.callback(sink.close)
            sinks.append(sink)
        yield tuple(sinks)


def _plan(args: argparse.Namespace, sinks: tuple[Any, ...]) -> Plan:
    from spark_ingest.contract.job import APPEND, Context, duration
    from spark_ingest.run.runner import Plan, log_rows

    job = load(args.job)
    given = {
        name.removeprefix("job_"): value
        for name, value in vars(args).items()
        if name.startswith("job_")
    }
    settings = job.parse(given)
    try:
        trigger = f"{duration(args.trigger)} microseconds"
    except ValueError as error:
        raise UsageError(f"--trigger: {error}") from None
    if args.end is not None:
        for flag, value in (
            ("--once", args.once),
            ("--checkpoint", args.checkpoint),
            ("--drain", args.drain),
            ("--accept-loss", args.accept_loss),
        ):
            if value:
                raise UsageError(f"{flag} does not apply to a batch (--to)")
    elif args.drain and not args.once:
        raise UsageError("--drain needs --once")
    source = _source(args)
    if args.drain and job.mode(settings) == APPEND:
        source["drain"] = "true"
    context = Context(registry=_registry(args, job.registry))
    return Plan(
        job,
        settings,
        context,
        sinks,
        log_rows(source, job, settings, is_stream=args.end is None),
        checkpoint=args.checkpoint or _checkpoint(args),
        trigger=trigger,
        once=args.once,
        accepts_loss=args.accept_loss,
    )


def _source(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the data source."""
    is_url = args.log.startswith(("http://", "https://"))
    options = {
        "url" if is_url else "path": args.log if is_url else str(Path(args.log).absolute()),
        "startingOffsets": args.start or "earliest",
    }
    if not is_url and not Path(args.log).is_dir():
        raise UsageError(f"--log: there is no directory {args.log}")
    if args.end is not None:
        options["endingOffsets"] = args.end
    if token := _token(args):
        options["token"] = token
    if args.parse:
        options["parse"] = args.parse
    if args.schema:
        options["schemaFile"] = args.schema
    if args.allow_data_loss:
        options["failOnDataLoss"] = "false"
    if args.max_rows is not None:
        if args.max_rows < 1:
            raise UsageError(f"--max-rows is 1 or more, not {args.max_rows}")
        options["maxRowsPerTrigger"] = str(args.max_rows)
    options["stream"] = args.stream or _only_stream(args.log, is_url=is_url)
    return options


def _only_stream(log: str, *, is_url: bool) -> str:
    if is_url:
        raise UsageError("--stream is required when --log is a URL")
    from mqtt_broker.streams.remote.remote_source import list_streams

    found = list_streams(log)
    if len(found) != 1:
        there = f"there are {', '.join(found)}" if found else "there is none"
        raise UsageError(f"--stream is required: in {log} {there}")
    return found[0]


def _token(args: argparse.Namespace) -> str:
    return args.token or os.environ.get("FLEETMQ_HTTP_TOKEN", "")


def _check_stream(args: argparse.Namespace) -> None:
    """Refuse a stream that is not there before Spark starts, which takes seconds."""
    from mqtt_broker.server.config.tables import did_you_mean
    from mqtt_broker.streams.format.errors import StreamError
    from mqtt_broker.streams.remote.remote_source import list_streams

    if args.stream is None:
        return
    try:
        found = list_streams(args.log, _token(args))
    except StreamError as error:
        raise Failure(f"--log: {error}") from None
    if args.stream not in found:
        there = did_you_mean(args.stream, found) or (
            f"; there are {', '.join(found[:_LISTED_MAX])}" if found else "; there is none"
        )
        raise UsageError(f"--stream: {args.log} has no stream {args.stream!r}{there}")


def _registry(args: argparse.Namespace, wanted: str) -> Any:
    """Return the device registry, in the SQL sink unless given; None if the job uses none."""
    from spark_ingest.contract.job import NEEDED, NONE
    from spark_ingest.contract.sink import is_sql
    from spark_ingest.registry import Registry

    url = args.registry or next((url for url in args.sink if is_sql(url)), None)
    if wanted == NONE or (wanted != NEEDED and args.registry is None):
        if wanted == NONE or url is None or not Registry.is_there(url, args.registry_table):
            return None
    if url is None:
        raise UsageError(f"--registry is required: {args.job} needs one, and no --sink is SQL")
    return Registry(url, args.registry_table)


def _checkpoint(args: argparse.Namespace) -> str:
    """Name the checkpoint after job, log and sinks, so that the same command resumes."""
    said = "\0".join([args.log, args.stream or "", *args.sink, args.table_prefix])
    return f"{CHECKPOINTS}/{args.job}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def _parse_conf(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(f"--conf: {text!r} is not spark.KEY=VALUE")
        found[key] = value
    return found


def _with_spark(args: argparse.Namespace, plan: Plan) -> int:
    import spark_ingest
    from spark_ingest.run import runner

    conf = _parse_conf(args.conf)
    _check_stream(args)
    show = _Show(sys.stderr, is_quiet=args.quiet)
    with contextlib.ExitStack() as stack:
        with interrupts.deferred():  # a JVM that is left while it starts stays behind
            spark = spark_session.start(
                f"fleetmq {args.job}", args.master, conf, py_files=tuple(args.py_files)
            )
            stack.callback(spark.stop)
            interrupts.reclaim()  # Spark has set a handler of its own
        spark_ingest.register(spark)
        if args.end is not None:
            progress = runner.batch(spark, plan)
        else:
            show.say(f"{args.job}: reading {args.log}; checkpoint {plan.checkpoint}")
            with interrupts.flag() as stop:
                progress = runner.stream(spark, plan, is_stopped=stop.is_set, on_progress=show.put)
        show.end(progress)
    return DONE


def _kill_children() -> None:
    """Kill the processes that this one has started: the JVM, whose own end with it."""
    own = os.getpid()
    for path in Path(f"/proc/{own}/task").glob("*/children"):
        for child in path.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)


class _Show:
    """Progress: one line that changes on a terminal, a line every few seconds elsewhere."""

    def __init__(self, out: TextIO, *, is_quiet: bool) -> None:
        self._out = out
        self._is_quiet = is_quiet
        self._is_terminal = out.isatty()
        self._last = 0.0

    def say(self, text: str) -> None:
        if not self._is_quiet:
            self._out.write(text + "\n")
            self._out.flush()

    def put(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._is_quiet or (not self._is_terminal and now - self._last < LINE_EVERY_S):
            return
        self._last = now
        if self._is_terminal:
            self._out.write(f"\r\x1b[K{_line(progress)}")
            self._out.flush()
        else:
            self.say(_line(progress))

    def end(self, progress: Progress) -> None:
        if self._is_terminal and not self._is_quiet:
            self._out.write("\r\x1b[K")
        results = ", ".join(f"{name} {rows:,}" for name, rows in progress.by_output.items())
        self.say(f"done: {_line(progress)}; written: {results or 'by executors'}")
        if progress.waiting:
            self.say(f"still waiting: {progress.waiting}, or with --drain")


def _line(progress: Progress) -> str:
    lag = "" if progress.lag_s is None else f", lag {progress.lag_s:.1f} s"
    return (
        f"batch {progress.batch}, {progress.rows:,} rows, {progress.rows_per_s:,.0f} rows/s{lag},"
        f" late {progress.late:,}, left out {progress.left_out:,}, rejects {progress.rejects:,}"
        + (f", dead letters {progress.dead_letters:,}" if progress.dead_letters else "")
        + (f", dropped {progress.dropped:,}" if progress.dropped else "")
    )

"""Reports of a run: as data (JSON), as a page, and as a few lines for a terminal.

The page is self-contained: it loads no script, font or image.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence, Sized
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any, Final, Protocol

from iot_sim.judge.histogram import PERCENTILES
from iot_sim.judge.ledger import Tally
from iot_sim.judge.outcome import COUNTERS, Outcome
from iot_sim.judge.verdict import LIMITS, Verdict, number
from iot_sim.report.charts import Line, abbreviate, line_chart, milliseconds
from iot_sim.report.progress import ms

FORMAT: Final = 1  # version of the JSON report; raised when a key changes its meaning
_COLUMNS: Final = (
    "sent", "acknowledged", "delivered", "lost", "repeated", "redelivered", "reordered",
    "altered", "late", "refused", "unconfirmed", "abandoned", "resent", "cut", "unjudged",
)  # fmt: skip
_BAD: Final = ("lost", "repeated", "reordered", "altered", "refused", "unconfirmed")


class PlayedFleet(Protocol):
    """A fleet as reports describe it."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def count(self) -> int: ...

    @property
    def interval_s(self) -> float: ...


class Played(Protocol):
    """A scenario as reports describe it: one that was played, or one read from a report."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def device_count(self) -> int: ...

    @property
    def duration_s(self) -> float: ...

    @property
    def speed(self) -> float: ...

    @property
    def fleets(self) -> Sequence[PlayedFleet]: ...

    @property
    def faults(self) -> Sized: ...


def to_data(
    scenario: Played, outcome: Outcome, verdict: Verdict, *, broker: str, workers: int
) -> dict[str, Any]:
    """Return the whole report as plain data."""
    return {
        "format": FORMAT,
        "scenario": {
            "name": scenario.name,
            "summary": scenario.summary,
            "seed": scenario.seed,
            "devices": scenario.device_count,
            "duration_s": scenario.duration_s,
            "speed": scenario.speed,
            "fleets": [
                {
                    "name": one.name,
                    "model": one.model,
                    "count": one.count,
                    "interval_s": one.interval_s,
                }
                for one in scenario.fleets
            ],
            "faults": len(scenario.faults),
        },
        "devices": outcome.devices,
        "observers": outcome.observers,
        "broker": broker,
        "workers": workers,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": verdict.to_data(),
        "totals": {
            **{name: outcome.total(name) for name in _COLUMNS},
            "unknown": outcome.unknown,
            "flows": outcome.flows,
            "elapsed_s": round(outcome.elapsed_s, 3),
            "drain_s": round(outcome.drain_s, 3),
            "drained": outcome.is_drained,
            "interrupted": outcome.was_interrupted,
            "messages_per_s": round(outcome.total("sent") / max(0.001, outcome.elapsed_s), 1),
        },
        "latency": outcome.latency().to_data(),
        "latency_from_due": outcome.latency_from_due().to_data(),
        "ack_latency": outcome.ack_latency().to_data(),
        "ack_latency_from_due": outcome.ack_latency_from_due().to_data(),
        "connect_latency": outcome.connect_latency.to_data(),
        "messages": [tally.to_data() for tally in outcome.tallies],
        "commands": outcome.commands.to_data(),
        "wills": {
            name: getattr(outcome.wills, name)
            for name in ("registered", "due", "delivered", "missing", "unexpected", "repeated")
        },
        "connections": {name: outcome.counters[name] for name in COUNTERS},
        "retained_replays": outcome.retained,
        "unstamped": outcome.unstamped,
        "simulator": {
            "cpu_s": round(outcome.cpu_s, 3),
            "schedule_lag": outcome.schedule_lag.to_data(),
        },
        "broker_process": {
            "cpu_cores": outcome.broker_cpu_cores,
            "rss_bytes_max": outcome.broker_rss_bytes_max,
        },
        "errors": outcome.errors,
        "examples": outcome.examples,
        "series": [sample.to_data() for sample in outcome.series],
    }


def summary_lines(scenario: Played, outcome: Outcome, verdict: Verdict) -> list[str]:
    """Return the result as lines for a terminal."""
    latency, acks = outcome.latency(), outcome.ack_latency()
    lines = [
        (
            f"{scenario.name}: {_clients(scenario, outcome)}, {outcome.elapsed_s:.1f} s, "
            f"{outcome.total('sent'):,} messages sent, {outcome.total('delivered'):,} delivered"
        ),
        (
            f"  {'class':<10} {'qos':>3} {'sent':>11} {'acked':>11} {'delivered':>11} {'lost':>7}"
            f" {'repeated':>9} {'reordered':>10} {'late':>7}"
        ),
    ]
    lines += [
        f"  {one.kind:<10} {one.qos:>3} {one.sent:>11,} {_acknowledged(one):>11}"
        f" {one.delivered:>11,} {one.lost:>7,} {one.repeated:>9,} {one.reordered:>10,}"
        f" {one.late:>7,}"
        for one in outcome.tallies
    ]
    lines.append(f"  delivery   {_percentiles(latency.percentile)}")
    lines.append(f"    from due {_percentiles(outcome.latency_from_due().percentile)}")
    lines.append(f"  ack        {_percentiles(acks.percentile)}")
    lines.append(f"    from due {_percentiles(outcome.ack_latency_from_due().percentile)}")
    commands = outcome.commands
    if commands.sent:
        lines.append(
            f"  commands   {commands.answered:,} of {commands.sent:,} answered,"
            f" round trip {_percentiles(commands.latency.percentile)}"
        )
    counters = outcome.counters
    lines.append(
        f"  sessions   {counters['connects']:,} connections, {counters['resumed']:,} resumed,"
        f" {counters['sessions_lost']:,} lost; wills {outcome.wills.due:,} due,"
        f" {outcome.wills.missing:,} missing"
    )
    if outcome.broker_cpu_cores is not None and outcome.broker_rss_bytes_max is not None:
        lines.append(
            f"  broker     {outcome.broker_cpu_cores:.2f} cores,"
            f" {outcome.broker_rss_bytes_max / 1e6:,.1f} MB"
        )
    lines += [f"  note: {remark}" for remark in verdict.remarks]
    lines += [f"  error: {text}" for text in outcome.errors[:5]]
    for check in verdict.broken:
        lines.append(f"  limit broken: {check} ({LIMITS[check.name].help})")
    for what, texts in outcome.examples.items():
        lines.append(f"  {what}, for example: {texts[0]}")
    lines.append(f"{verdict.word} ({verdict.reservation})" if verdict.reservation else verdict.word)
    return lines


def _clients(scenario: Played, outcome: Outcome) -> str:
    """Describe the clients of the run: the devices, and the observers beside them."""
    observers = f"{outcome.observers:,} observer{'' if outcome.observers == 1 else 's'}"
    devices = f"{scenario.device_count:,} devices"
    if 0 < outcome.devices < scenario.device_count:
        devices = f"{outcome.devices:,} of {devices}"
    return f"{devices} and {observers}"


def _acknowledged(tally: Tally) -> str:
    """Format how many were acknowledged; QoS 0 has no acknowledgements."""
    return f"{tally.acknowledged:,}" if tally.qos else "-"


def _percentiles(percentile: Any) -> str:
    named = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
    return ", ".join(f"{name} {ms(percentile(at))}" for name, at in named.items())


# The page.


def to_html(
    scenario: Played, outcome: Outcome, verdict: Verdict, *, broker: str, workers: int
) -> str:
    template = string.Template((resources.files("iot_sim.report") / "report.html").read_text())
    facts = (
        f"{_clients(scenario, outcome)} on {broker}, {outcome.elapsed_s:.0f} s,"
        f" seed {scenario.seed}, {workers} process{'es' if workers > 1 else ''},"
        f" ended {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )
    return template.substitute(
        title=escape(f"{scenario.name}: {verdict.word.lower()}"),
        name=escape(scenario.name),
        summary=escape(scenario.summary),
        verdict=verdict.word,
        verdict_class=verdict.word.lower(),
        reservation=_reservation(verdict),
        facts=escape(facts),
        remarks=_remarks(verdict),
        cards=_cards(outcome),
        charts=_charts(outcome),
        checks=_checks(verdict),
        tallies=_tallies(outcome.tallies),
        latencies=_latencies(outcome),
        counters=_counters(outcome),
        commands=_commands(outcome),
        mistakes=_errors(outcome),
    )


def _reservation(verdict: Verdict) -> str:
    text = verdict.reservation
    return f' <span class="doubt">{escape(text)}</span>' if text else ""


def _remarks(verdict: Verdict) -> str:
    return "".join(f"<p>{escape(remark)}.</p>" for remark in verdict.remarks)


def _cards(outcome: Outcome) -> str:
    latency = outcome.latency()
    rate = outcome.total("sent") / max(0.001, outcome.elapsed_s)
    cards = [
        ("messages sent", f"{outcome.total('sent'):,}"),
        ("delivered", f"{outcome.total('delivered'):,}"),
        ("messages a second", f"{rate:,.0f}"),
        ("lost, QoS 1 and 2", f"{outcome.total('lost', (1, 2)):,}"),
        ("repeated", f"{outcome.total('repeated'):,}"),
        ("out of order", f"{outcome.total('reordered'):,}"),
        ("delivery p50", ms(latency.percentile(50))),
        ("delivery p99.9", ms(latency.percentile(99.9))),
    ]
    if outcome.broker_cpu_cores is not None:
        cards.append(("broker, cores", f"{outcome.broker_cpu_cores:.2f}"))
    if outcome.broker_rss_bytes_max is not None:
        cards.append(("broker, memory", f"{outcome.broker_rss_bytes_max / 1e6:,.0f} MB"))
    columns = -(-len(cards) // 2)  # two rows
    shown = "".join(
        f'<div class="card"><b>{escape(value)}</b><span class="soft">{escape(name)}</span></div>'
        for name, value in cards
    )
    return f'<div class="cards" style="--columns: {columns}">{shown}</div>'


def _charts(outcome: Outcome) -> str:
    series = outcome.series
    if not series:
        return ""
    seconds = [float(one.second + 1) for one in series]
    heard = [one.latency.count > 0 for one in series]

    def latency(percent: float) -> list[float | None]:
        return [
            one.latency.percentile(percent) / 1000 if there else None
            for one, there in zip(series, heard, strict=True)
        ]

    charts = [
        _chart("Messages a second", seconds, abbreviate, [
            Line("sent", "a", [one.sent for one in series]),
            Line("acknowledged", "c", [one.acknowledged for one in series]),
            Line("delivered", "b", [one.delivered for one in series]),
        ]),
        _chart("Send to delivery", seconds, milliseconds, [
            Line("median", "a", latency(50)), Line("99th percentile", "c", latency(99)),
        ]),
        _chart("Connections", seconds, abbreviate, [
            Line("wanted", "d", [one.wanted for one in series]),
            Line("connected", "b", [one.connected for one in series]),
            Line("under a fault", "c", [one.faulty for one in series]),
        ]),
        _distribution(outcome),
    ]  # fmt: skip
    if any(one.broker_cpu is not None for one in series):
        memory = [
            None if one.broker_rss_bytes is None else one.broker_rss_bytes / 1e6 for one in series
        ]
        charts.append(
            _chart("Broker: cores in use", seconds, abbreviate,
                   [Line("cores", "a", [one.broker_cpu for one in series])])
        )  # fmt: skip
        charts.append(
            _chart("Broker: memory", seconds, lambda value: f"{abbreviate(value)} MB",
                   [Line("resident", "b", memory)])
        )  # fmt: skip
    return "".join(charts)


def _chart(title: str, seconds: Sequence[float], show: Any, lines: Sequence[Line]) -> str:
    legend = "".join(f'<span><i class="{one.style}"></i>{escape(one.name)}</span>' for one in lines)
    return (
        f"<section><h2>{escape(title)}</h2>{line_chart(title, seconds, lines, show)}"
        f'<p class="legend">{legend}</p></section>'
    )


def _distribution(outcome: Outcome) -> str:
    """Render the latency of messages as a table of percentiles."""
    found = (
        outcome.latency(), outcome.latency_from_due(),
        outcome.ack_latency(), outcome.ack_latency_from_due(), outcome.connect_latency,
    )  # fmt: skip
    wanted = {**PERCENTILES, "p99.99": 99.99, "longest": 100.0}
    rows = [
        [name.replace("_", "."), *(ms(one.percentile(at)) for one in found)]
        for name, at in wanted.items()
    ]
    head = ("", "delivery", "from due", "acknowledgement", "from due", "connect")
    return f"<section><h2>Percentiles</h2>{_table(head, rows)}</section>"


def _checks(verdict: Verdict) -> str:
    rows = []
    for check in sorted(verdict.checks, key=lambda one: one.passed):
        style = "good" if check.passed else "bad"
        measured = "not measured" if check.measured is None else number(check.measured)
        rows.append(
            f'<tr><td>{escape(check.name)}</td><td class="{style}">{measured}</td>'
            f"<td>{number(check.allowed)}</td>"
            f'<td class="wide">{escape(LIMITS[check.name].help)}</td></tr>'
        )
    return (
        "<table><tr><th>limit</th><th>measured</th><th>allowed</th><th></th></tr>"
        + "".join(rows)
        + "</table>"
    )


def _tallies(tallies: Sequence[Tally]) -> str:
    shown = [
        name
        for name in _COLUMNS
        if name in _COLUMNS[:9] or any(getattr(tally, name) for tally in tallies)
    ]
    rows = []
    for tally in tallies:
        cells = [f"<td>{escape(tally.kind)}</td><td>{tally.qos}</td>"]
        for name in shown:
            if name == "acknowledged":
                cells.append(f"<td>{_acknowledged(tally)}</td>")
                continue
            value = getattr(tally, name)
            bad = name in _BAD and value and not (name == "lost" and not tally.qos)
            cells.append(f"<td{' class=bad' if bad else ''}>{value:,}</td>")
        rows.append("<tr>" + "".join(cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("class", "QoS", *shown))
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _latencies(outcome: Outcome) -> str:
    head = ("class", "QoS", *(name.replace("_", ".") for name in PERCENTILES), "longest",
            "ack p50", "ack p99")  # fmt: skip
    rows = [
        [one.kind, str(one.qos), *(ms(one.latency.percentile(at)) for at in PERCENTILES.values()),
         ms(one.latency.max_us), *(ms(one.ack_latency.percentile(at)) if one.qos else "-"
                                   for at in (50, 99))]
        for one in outcome.tallies if one.latency.count
    ]  # fmt: skip
    return _table(head, rows)


def _counters(outcome: Outcome) -> str:
    rows = [
        f"<tr><td>{escape(name)}</td><td>{outcome.counters[name]:,}</td>"
        f'<td class="wide">{escape(text)}</td></tr>'
        for name, text in COUNTERS.items()
        if outcome.counters[name]
    ]
    wills = outcome.wills
    rows.append(
        f"<tr><td>wills</td><td>{wills.delivered:,}</td><td class=wide>published;"
        f" {wills.registered:,} registered, {wills.due:,} due, {wills.missing:,} missing,"
        f" {wills.unexpected:,} unexpected</td></tr>"
    )
    return "<table>" + "".join(rows) + "</table>"


def _commands(outcome: Outcome) -> str:
    commands = outcome.commands
    if not commands.sent and not commands.unsent:
        return ""
    head = ("sent", "answered", "refused", "unanswered", "not sent", "p50", "p99", "longest")
    row = [
        *(f"{value:,}" for value in (commands.sent, commands.answered, commands.refused,
                                      commands.unanswered, commands.unsent)),
        ms(commands.latency.percentile(50)), ms(commands.latency.percentile(99)),
        ms(commands.latency.max_us),
    ]  # fmt: skip
    return f"<section><h2>Commands</h2>{_table(head, [row])}</section>"


def _errors(outcome: Outcome) -> str:
    out = []
    if outcome.errors:
        out.append(f"<section><h2>Errors</h2>{_list(outcome.errors)}</section>")
    for what, texts in outcome.examples.items():
        title = escape(f"Examples: {what}")
        out.append(f"<section><h2>{title}</h2>{_list(texts)}</section>")
    return "".join(out)


def _list(texts: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li><code>{escape(text)}</code></li>" for text in texts) + "</ul>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return (
        "<table><tr>"
        + "".join(f"<th>{escape(cell)}</th>" for cell in head)
        + "</tr>"
        + "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        + "</table>"
    )

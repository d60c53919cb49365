"""Reports of a run for other programs: JUnit XML for CI, and CSV with a row for each second."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree import ElementTree

from iot_sim.judge.outcome import Outcome, Sample
from iot_sim.judge.verdict import LIMITS, Verdict
from iot_sim.report.report import Played, summary_lines

# Characters that XML 1.0 cannot contain, not even escaped.
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(scenario: Played, outcome: Outcome, verdict: Verdict, *, broker: str) -> str:
    """Return the verdict as JUnit XML: each limit is a test case, and so is the run itself."""
    seconds = f"{outcome.elapsed_s + outcome.drain_s:.3f}"
    facts = {
        "broker": broker,
        "devices": str(scenario.device_count),
        "seed": str(scenario.seed),
        "sent": str(outcome.total("sent")),
        "delivered": str(outcome.total("delivered")),
        "simulator_was_late": str(verdict.late_ms is not None).lower(),
    }
    xml = _Xml()
    with (
        xml.tag("testsuites"),
        xml.tag(
            "testsuite",
            name=f"fleetmq sim {scenario.name}",
            tests=str(len(verdict.checks) + 1),
            failures=str(len(verdict.broken)),
            errors=str(int(verdict.was_interrupted)),
            skipped=str(sum(check.measured is None for check in verdict.checks)),
            time=seconds,
        ),
    ):
        with xml.tag("properties"):
            for name, value in facts.items():
                xml.put("property", name=name, value=value)
        group = f"fleetmq.sim.{scenario.name}"
        with xml.tag("testcase", classname=group, name="run", time=seconds):
            if verdict.was_interrupted:
                xml.put("error", message="the run was interrupted")
        for check in verdict.checks:
            with xml.tag("testcase", classname=group, name=check.name):
                if check.measured is None:
                    xml.put("skipped", message="not measured")
                elif not check.passed:
                    xml.put("failure", LIMITS[check.name].help, message=str(check))
        xml.put("system-out", "\n".join(summary_lines(scenario, outcome, verdict)))
    return xml.text()


class _Xml:
    """A document in the making."""

    def __init__(self) -> None:
        self._builder = ElementTree.TreeBuilder()

    @contextlib.contextmanager
    def tag(self, kind: str, /, **attributes: str) -> Iterator[None]:
        """Open an element for the time of a block."""
        known = {key: _clean(value) for key, value in attributes.items()}
        self._builder.start(kind, known)
        yield
        self._builder.end(kind)

    def put(self, kind: str, text: str = "", /, **attributes: str) -> None:
        with self.tag(kind, **attributes):
            self._builder.data(_clean(text))

    def text(self) -> str:
        root = self._builder.close()
        ElementTree.indent(root)
        return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def to_csv(series: Sequence[Sample]) -> str:
    """Return the samples as CSV, with a head; what was not measured is empty."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(Sample(0).to_data()))
    writer.writeheader()
    writer.writerows(sample.to_data() for sample in series)
    return out.getvalue()


def _clean(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)

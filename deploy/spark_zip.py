"""The code that Spark's executors need, as a zip for `--py-files`.

    python deploy/spark_zip.py [build/fleetmq-spark.zip]

Executors read the log and decode payloads: `spark_ingest`, and of the broker what that imports.
The zip has only Python files and is the same, byte for byte, for the same sources. What it does
not have are the packages beside it: pyarrow on every executor, and cbor2 for CBOR payloads.
"""

from __future__ import annotations

import pathlib
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("spark_ingest", "mqtt_broker", "qos", "sessions")
# What runs beside a broker or a terminal, never in an executor.
LEFT_OUT = ("mqtt_broker/server", "mqtt_broker/http_api", "mqtt_broker/cli")
LONG_AGO = (1980, 1, 1, 0, 0, 0)


def main(target: pathlib.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with zipfile.ZipFile(target, "w") as archive:
        for package in PACKAGES:
            for path in sorted((ROOT / package).rglob("*.py")):
                name = path.relative_to(ROOT).as_posix()
                if not name.startswith(LEFT_OUT):
                    entry = zipfile.ZipInfo(name, LONG_AGO)
                    archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
                    count += 1
    print(f"{target}: {count} files, {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "fleetmq-spark.zip"))

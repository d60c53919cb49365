"""Results as Parquet files, written by the executors.

    <dir>/<output>/query=<checkpoint's id>/batch=<number>/day=<date>/part-....parquet

A batch is a directory, and writing it again replaces it, so a batch that is repeated after a
crash is there once. It is whole when it has a `_SUCCESS`. `day` is of the output's time (the
window's start, or when the row was), for readers who want a part; outputs without a time have
none.

A window that grew, or was corrected, is in several batches: the last batch counts, and
`read_current` returns that one. Small triggers make many small files: prefer `--trigger 1m` or
more.
"""

from __future__ import annotations

import uuid
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_ingest.contract.sink import Batch, SinkError

# The columns that a day is taken of: the first that an output has.
TIMES: Final = ("window_start", "at", "received")
_DAY: Final = "day"


class ParquetSink:
    def __init__(self, directory: str, prefix: str = "") -> None:
        self._directory = directory.rstrip("/")
        self._prefix = prefix

    def write(self, batch: Batch) -> None:
        frame = batch.frame
        is_shared = len(batch.outputs) > 1 and not batch.is_collected
        if is_shared:  # otherwise each output would compute everything again
            frame.persist()
        try:
            for output in batch.outputs:
                self._write(batch, output.name, batch.rows_of(output))
        except PySparkException as error:
            line = " ".join(str(error).split())[:300]
            raise SinkError(f"parquet:{self._directory}: {line}") from error
        finally:
            if is_shared:
                frame.unpersist()

    def _write(self, batch: Batch, name: str, rows: DataFrame) -> None:
        place = f"{self.place(name)}/query={batch.query}/batch={batch.number}"
        time = next((one for one in TIMES if one in rows.columns), None)
        if time is None:
            rows.write.mode("overwrite").parquet(place)
        else:
            dated = rows.withColumn(_DAY, F.to_date(time))
            dated.write.mode("overwrite").partitionBy(_DAY).parquet(place)

    def place(self, name: str) -> str:
        return f"{self._directory}/{self._prefix}{name}"

    def close(self) -> None:
        pass


def open_sink(url: str, prefix: str) -> ParquetSink:
    directory = url.partition(":")[2]
    if directory.startswith("//") and not directory.startswith("///"):
        raise SinkError(f"{url!r}: say parquet:DIR, parquet:///DIR or parquet:hdfs://HOST/DIR")
    if not directory.strip("/"):
        raise SinkError(f"{url!r} names no directory")
    return ParquetSink(directory.removeprefix("//"), prefix)


def read_current(spark: SparkSession, place: str, *keys: str) -> DataFrame:
    """Read the current rows of one output's directory: each row once, from its last batch."""
    number, order = f"batch_{uuid.uuid4().hex}", Window.partitionBy(*keys)
    rows = spark.read.option("basePath", place).parquet(f"{place}/query=*/batch=*")
    ranked = rows.withColumn(number, F.row_number().over(order.orderBy(F.desc("batch"))))
    return ranked.where(F.col(number) == 1).drop(number, "query", "batch", _DAY)

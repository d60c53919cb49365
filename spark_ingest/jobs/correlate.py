"""`correlate`: requests with their answers, within a time.

    SELECT * FROM requests q LEFT JOIN answers a
    ON a.key = q.key AND a.at BETWEEN q.at AND q.at + INTERVAL 10 SECONDS

Requests are messages to topics of one filter, answers those of another: commands and responses
(`--requests '+/cmd/#' --answers '+/response'`), alarms and acknowledgements. What makes an answer
belong to its request is a key: MQTT's Correlation Data, the client, a level of the topic, a field
of the payload. Each answer within the time is a row (`answered`); a request without any is one
too (`unanswered`), when the time is over and nothing can arrive that would still change it.

Times are the broker's, one clock for both sides (`--time event` takes the devices'; what is then
too far from when it was received goes to `rejects`). Requests and
answers may lie in different partitions: `--skew` is how far behind another one may be read, and
how much longer an unanswered request takes to be told.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ingest.analysis.columns import (
    REJECTS,
    at_the_end,
    before_the_end,
    is_end,
    matches,
    of_topics,
    place,
    reject,
    text_of,
    time_of,
    time_trouble,
    topic_filter,
)
from spark_ingest.analysis.lateness import interval_text, plus
from spark_ingest.contract.job import (
    APPEND,
    Context,
    Job,
    OptionError,
    Output,
    duration,
    option,
    positive_duration,
)

CORRELATED = Output(
    "correlated",
    ("request_partition", "request_offset", "answer_partition", "answer_offset"),
)
CORRELATION = "correlation"
RECEIVED = "received"
_SIDES = 2  # what checkpoints of before read, without rejects


def _key(text: str) -> str:
    return text if text == CORRELATION else place("client", "topic", "value")(text)


@dataclass(frozen=True)
class CorrelateOptions:
    requests: str = option("--requests", topic_filter, "+/+/cmd/#", "topics of requests")
    answers: str = option("--answers", topic_filter, "+/+/response/#", "topics of answers")
    key: str = option(
        "--key", _key, CORRELATION,
        "what both have: correlation (MQTT's), client, topic:N or value:FIELD",
    )  # fmt: skip
    answer_key: str = option("--answer-key", lambda text: _key(text) if text else "", "",
                             "where the answer has it, if elsewhere")  # fmt: skip
    within_us: int = option("--within", positive_duration, "10s", "an answer comes so soon")
    time: str = option(
        "--time", place("event", "received", "sent", "value"), "received", "whose clock"
    )
    skew_us: int = option(
        "--skew", duration, "1m", "how far behind another a partition may be read"
    )
    allowed_us: int = option(
        "--allowed-lateness", duration, "10m",
        "how long before it was received a message may be, by a device's clock",
    )  # fmt: skip
    ahead_us: int = option("--ahead", duration, "5m", "and how long after it")

    @property
    def delay_us(self) -> int:
        """Return the delay of Spark's watermark that drops no row which the job accepts."""
        if self.time == RECEIVED:
            return self.skew_us
        return self.skew_us + self.allowed_us + self.ahead_us


def build(rows: DataFrame, options: CorrelateOptions, context: Context) -> DataFrame:
    if options.requests == options.answers:
        raise OptionError("--answers", "it is the same as --requests")
    rows = rows.withColumn("reject_reason", _trouble(rows, options))
    requests = _side(rows, "request", options.requests, options.key, options)
    answers = _side(rows, "answer", options.answers, options.answer_key or options.key, options)
    until = F.col("request_at") + F.expr(f"INTERVAL {options.within_us} MICROSECONDS")
    joined = requests.join(
        answers,
        (F.col("request_key") == F.col("answer_key"))
        & (F.col("answer_at") >= F.col("request_at"))
        & (F.col("answer_at") <= until),
        "left_outer",
    )
    took = F.unix_micros("answer_at") - F.unix_micros("request_at")
    result = F.struct(
        "request_partition",
        "request_offset",
        F.coalesce("answer_partition", F.lit(-1)).alias("answer_partition"),
        F.coalesce("answer_offset", F.lit(-1)).alias("answer_offset"),
        F.col("request_key").alias("key"),
        F.when(F.col("answer_at").isNull(), F.lit("unanswered"))
        .otherwise(F.lit("answered"))
        .alias("outcome"),
        *["request_topic", "request_client", "request_at"],
        *["answer_topic", "answer_client", "answer_at"],
        (took / F.lit(1_000_000)).alias("took_s"),
    )
    found = joined.select(result.alias("correlated"))
    rejects = _rejects(rows, options)
    # Where there are none, nothing is read for them.
    if options.time == RECEIVED or context.sources == _SIDES:
        return found.withColumn("rejects", F.lit(None).cast(rejects.schema["rejects"].dataType))
    return found.unionByName(rejects, allowMissingColumns=True)


def _trouble(rows: DataFrame, options: CorrelateOptions) -> Column:
    """Return why a row can be neither request nor answer, by a rule of each row alone."""
    if options.time == RECEIVED:
        return F.lit(None).cast("string")
    at, received = time_of(rows, options.time), F.col("received")
    return F.coalesce(
        time_trouble(rows, options.time),
        F.when(at > plus(received, options.ahead_us), F.lit("time: of the future (--ahead)")),
        F.when(
            at < plus(received, -options.allowed_us), F.lit("time: too late (--allowed-lateness)")
        ),
    )


def _rejects(rows: DataFrame, options: CorrelateOptions) -> DataFrame:
    """Return the requests and answers without a time, or with one too far from the broker's."""
    sides = [matches(F.col("topic"), topics) for topics in (options.requests, options.answers)]
    is_meant = F.lit(False)
    for side in sides:
        is_meant = is_meant | (F.lit(True) if side is None else side)
    return rows.where(is_meant & F.col("reject_reason").isNotNull()).select(
        reject(rows).alias("rejects")
    )


def _side(
    rows: DataFrame, name: str, topics: str, key: str, options: CorrelateOptions
) -> DataFrame:
    at = f"{name}_at"
    told = (
        of_topics(rows.where(F.col("reject_reason").isNull()), topics)
        .select(
            F.col("partition").alias(f"{name}_partition"),
            F.col("offset").alias(f"{name}_offset"),
            F.col("topic").alias(f"{name}_topic"),
            F.col("client_id").alias(f"{name}_client"),
            at_the_end(time_of(rows, options.time)).alias(at),
            F.when(is_end(), F.lit("the end"))
            .otherwise(_key_column(rows, key))
            .alias(f"{name}_key"),
        )
        .where(F.col(f"{name}_key").isNotNull() & (F.col(f"{name}_key") != ""))
        .withWatermark(at, interval_text(options.delay_us))
    )
    return before_the_end(told, at)


def _key_column(rows: DataFrame, key: str) -> Column:
    """Return the key as text, so that the sides may differ in its place. Bytes become hex."""
    if key == CORRELATION:
        return F.hex(F.col("properties.correlation_data"))
    return text_of(rows, key, "--key")


def _waiting(spark: SparkSession, checkpoint: str) -> str:
    state = spark.read.format("statestore").option("joinSide", "left").load(checkpoint)
    found = state.count()
    if not found:
        return ""
    return f"{found:,} requests, which may still be answered: they are told when that is over"


JOB = Job(
    "correlate",
    CorrelateOptions,
    (CORRELATED, REJECTS),
    build,
    lambda options: APPEND,
    waiting=_waiting,
    unread=("payload", "qos", "retain"),
)

"""The names of `spark_ingest.contract.job`, for programs that import them from here."""

from spark_ingest.contract.job import (
    APPEND,
    EACH_BATCH,
    NEEDED,
    NONE,
    OPTIONAL,
    UPDATE,
    Context,
    Job,
    OptionError,
    Output,
    option,
)

__all__ = [
    "APPEND",
    "EACH_BATCH",
    "NEEDED",
    "NONE",
    "OPTIONAL",
    "UPDATE",
    "Context",
    "Job",
    "OptionError",
    "Output",
    "option",
]

"""The code that jobs share: columns of telemetry, lateness, pure state machines by device.

`findings` and `statistics` are pure Python, so they are tested without Spark.
"""

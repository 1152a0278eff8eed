"""The demo: telemetry streamed into a table with Spark, questions put to it, and deltalake beside it."""

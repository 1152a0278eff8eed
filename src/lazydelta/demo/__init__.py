"""The demo: streams telemetry into a table with Spark, queries it, and compares with deltalake."""

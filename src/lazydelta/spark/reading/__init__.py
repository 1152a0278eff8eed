"""Tables as sources of Spark: format("lazydelta"), and files handed to Spark's own reader."""

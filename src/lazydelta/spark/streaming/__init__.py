"""``readStream.format("lazydelta")``: a table as a source of Spark's streams."""

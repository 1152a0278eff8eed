"""Read a data file as the table presents it."""

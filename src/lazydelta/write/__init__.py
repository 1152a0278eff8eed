"""Writing to tables: options become a plan, a plan a job, and a job one atomic commit.

Data files are in place before the commit names them. When maintenance follows is not known here.
"""

__all__ = [
    "alter",
    "batch_record",
    "checkpoint",
    "commit",
    "computed_columns",
    "conflicts",
    "copied_rows",
    "create",
    "data_files",
    "evolution",
    "file_commit",
    "identity",
    "job",
    "options",
    "parquet_encoding",
    "plan",
    "row_changes",
    "transaction",
]

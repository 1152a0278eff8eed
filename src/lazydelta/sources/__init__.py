"""Source files of an ingestion: which there are, what columns they have, and their rows as Arrow batches."""

"""VACUUM: deletes the files below a table's root that no version within the retention refers to."""

"""Query engines on top of the row scanner. Each module imports its engine when it is used."""

"""Flight SQL: statements, prepared statements and a catalog over the tables of a server, for ADBC, JDBC and others."""

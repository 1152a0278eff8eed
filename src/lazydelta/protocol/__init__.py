"""The Delta protocol without I/O: types, values, actions, features, properties and names of log files."""

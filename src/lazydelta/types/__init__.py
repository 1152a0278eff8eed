"""Delta's types and texts: the schema, Arrow's types for it, values from texts and back, widening."""

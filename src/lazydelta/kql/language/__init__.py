"""KQL as text: its grammar, its literals and the syntax tree."""

"""The KQL language: grammar, literals and syntax tree."""

"""KQL over Delta tables."""

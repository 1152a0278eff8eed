"""The functions of KQL, declared by subject; ``table`` has them all."""

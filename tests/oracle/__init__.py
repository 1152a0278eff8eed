"""What the log must say: a plain replay, random logs to replay, and ways to damage them."""

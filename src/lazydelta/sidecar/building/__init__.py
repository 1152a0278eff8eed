"""Building, refreshing and publishing sidecars."""

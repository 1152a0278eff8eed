"""What a query means: names, types and functions, bound into a plan over tables."""

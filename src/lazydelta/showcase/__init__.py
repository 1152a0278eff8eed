"""The demo, and the tables that benchmarks are made with: commands of the product that show it."""

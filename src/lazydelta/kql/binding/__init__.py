"""Binding: resolve names, types and functions of a query into a plan over tables."""

"""Benchmarks: ratios and medians inside one run, never absolute times across machines."""

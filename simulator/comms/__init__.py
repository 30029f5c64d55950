"""Collectives on links: algorithms, loads, max-min sharing, bounds."""

"""Microbenchmarks of links and devices, their fits, and the profile they are written to."""

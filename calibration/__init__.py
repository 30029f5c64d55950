"""Measuring: readers of logs of real machines, fits of their constants, and comparisons with predictions."""

"""Predictions held against real steps, configuration by configuration."""

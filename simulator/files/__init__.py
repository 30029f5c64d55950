"""Scenario files: reading, checking, writing, and what is shipped."""

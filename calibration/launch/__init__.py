"""Processes of a real run: the world they form, what they must agree on, their clocks, and how they end."""

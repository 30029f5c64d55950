"""TorchRec's plans and planner: imports, exports, and its own estimates digit for digit."""

"""Profiles of what other programs measured: nccl-tests' logs and Kineto's traces as points of collectives and work."""

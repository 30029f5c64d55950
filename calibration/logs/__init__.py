"""Logs that other programs wrote: nccl-tests read, compared with predictions, and fitted."""

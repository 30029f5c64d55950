"""Machines: which GPUs, links, nodes and fabrics there are, where their figures are from, how bytes flow on them."""

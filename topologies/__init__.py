"""Machines: what GPUs, links, nodes and fabrics there are, where their figures come from, and how bytes flow on them."""

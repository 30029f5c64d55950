"""Several nodes on one machine: network namespaces joined by shaped links."""

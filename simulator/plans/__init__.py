"""Plans resolved: every table cut into shards, each with its owner."""

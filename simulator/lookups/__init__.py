"""Who asks whom for which rows, exactly from id batches or in expectation."""

"""From shards to batches. Knows nothing of the model."""

"""The offline stage: images → shards → cached teacher targets. Training code never imports it."""

"""What every room may use and what knows nothing of models or data: files, signals, progress, precision."""

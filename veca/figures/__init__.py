"""Pictures of what a model sees, and numbers about what its cores do."""

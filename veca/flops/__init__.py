"""What things cost by arithmetic: a model's FLOPs, a training step's, a whole recipe's."""

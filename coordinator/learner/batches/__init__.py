"""Groups of rollouts as the rows of tensors, dealt among the ranks."""

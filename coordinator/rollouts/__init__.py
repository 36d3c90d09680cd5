"""What is true of a group on its way from lease to batch."""

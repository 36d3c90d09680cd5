"""Three small tasksets as `verifiers init` writes them, for the demo and the tests. verifiers alone imports them."""

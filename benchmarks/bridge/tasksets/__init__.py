"""Three small tasksets as `verifiers init` writes them, for `make demo-verifiers`, the tests and this benchmark. Only
verifiers imports them."""

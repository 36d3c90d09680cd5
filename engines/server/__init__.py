"""The engine on a server that runs already (rules: engines.server.engine)."""

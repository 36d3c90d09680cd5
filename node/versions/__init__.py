"""The following of versions: fetch documents and payloads, step the local weights, acknowledge."""

"""The node's advance to new versions: fetch documents and payloads, step the local weights, acknowledge."""

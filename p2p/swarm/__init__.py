"""Payload exchange: cut a payload into chunks, choose whom to ask, verify, store, and pass on."""

"""Payload exchange: cut a payload into chunks, choose peers for requests, verify, store, and forward."""

"""Publish versions: sign, plan the broadcast, rebuild payloads, advertise the coordinator."""

"""The transport over py-libp2p, on trio: handshake, muxer, gossip, relays, hole punching."""

"""Forming the ring: addresses of the peers, listening, dialing, handshake, protection."""

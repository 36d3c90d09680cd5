"""Find and dial peers: invites, signed peer records, dial-back, multicast DNS."""

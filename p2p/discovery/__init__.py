"""Find peers and dial them: invites, signed peer records, dial-back, multicast DNS."""

"""What the bundled libp2p imports in place of libraries of which it needs a few lines (bundle_libp2p.py)."""

"""Policy versions: snapshot, codec, diff, edge, store. Knows no network and no signature."""

"""What a policy version is: snapshot, codec, diff, edge, store. Knows no network and no signature."""

"""The page under many visitors, beside static files of the same sizes."""

"""The operator's settings: each section of coordinator.toml, and the page that describes them."""

"""What any process of this project stands on: descriptors, files, child processes. Imports none of the other packages."""

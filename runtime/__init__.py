"""What any process of this project stands on: descriptors, files, child processes. Imports no other package of ours."""

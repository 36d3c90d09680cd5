"""The ground of every process: descriptors, files, child processes. Imports no other package of ours."""

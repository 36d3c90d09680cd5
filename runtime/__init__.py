"""The base of every process: files, locks, errors, logs, settings, exit codes, sockets. Imports no other package of
this project."""

"""The ground of every process: files, locks, errors, logs, settings, exit codes, sockets. Imports no package of
ours."""

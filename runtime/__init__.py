"""What any process stands on: files, locks, errors, logs, settings, exit codes, sockets. Imports no package of ours."""

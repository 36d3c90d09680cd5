"""The commands of `echo2-node`, a module for each subject."""

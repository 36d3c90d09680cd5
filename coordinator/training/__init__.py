"""Drive the learner and the scorer: their processes, loops, faults and pauses."""

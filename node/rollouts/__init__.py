"""The work for leases: check a lease, generate its group, store and deliver the submission, store the answer."""

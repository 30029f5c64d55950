"""What was measured on a machine: profiles of collectives and of work, and the curves through their points."""

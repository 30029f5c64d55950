"""What a job is and what a step moves, as frozen data: workload, plan, layout, scenario, program, demand, trace."""

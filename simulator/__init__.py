"""Predict one training step of an embedding-heavy recommender: scenario in, StepTrace and report out.

    from foreshard.simulator import load_scenario, predict

    from foreshard.simulator.results import report

    prediction = predict(load_scenario("mlperf-dcnv2-p5", ["cluster.nodes=4"]))
    report(prediction)          # shows itself in a notebook; .to_text(), .to_dict()

Nothing here imports matplotlib or pandas before a plot or a frame is asked for.
"""

from foreshard.simulator.files.reading import read_scenario as load_scenario
from foreshard.simulator.job.layout import Layout
from foreshard.simulator.job.scenario import ClusterChoice, Comms, Execution, Scenario
from foreshard.simulator.job.sharding import Plan, TableSharding
from foreshard.simulator.job.trace import Span, StepTrace
from foreshard.simulator.job.workload import Access, Dense, Table, Workload
from foreshard.simulator.results.export import write_trace
from foreshard.simulator.results.plot import (
    plot_comparison,
    plot_memory,
    plot_scaling,
    plot_stages,
    plot_step,
    plot_timeline,
    save_plot,
)
from foreshard.simulator.results.report import Report, report
from foreshard.simulator.results.sweep import Comparison, compare
from foreshard.simulator.step.prediction import Prediction, predict, simulate

__all__ = [
    "Access",
    "ClusterChoice",
    "Comms",
    "Comparison",
    "Dense",
    "Execution",
    "Layout",
    "Plan",
    "Prediction",
    "Report",
    "Scenario",
    "Span",
    "StepTrace",
    "Table",
    "TableSharding",
    "Workload",
    "compare",
    "load_scenario",
    "plot_comparison",
    "plot_memory",
    "plot_scaling",
    "plot_stages",
    "plot_step",
    "plot_timeline",
    "predict",
    "report",
    "save_plot",
    "simulate",
    "write_trace",
]

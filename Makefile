# The two commands of the README: `make demo` and `make test`. Everything lives in .venv; nothing else is touched.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TORCHREC := .venv-torchrec
ROOMS  := simulator kernels topologies calibration

.PHONY: demo test lint types bench bench-gpu accuracy notebooks testbed torchrec wheel clean

demo: $(VENV)/.demo
	@mkdir -p demo-out
	@echo "MLPerf DLRM-DCNv2, weak scaling over nodes: global sharding against 2D with look-ups inside the node"
	$(BIN)/foreshard compare mlperf-dcnv2-p5 \
		--vary cluster.preset=p5.48xlarge,p4d.24xlarge --vary layout.sharding_group_size=world,8 \
		--vary cluster.nodes=1,2,4,8 --csv demo-out/scaling.csv --plot demo-out/scaling.png
	@echo; echo "What 2D costs: replicas average their weights every so many steps, in either placement"
	$(BIN)/foreshard compare mlperf-dcnv2-p5 --set layout.sharding_group_size=8 --set layout.sync=weights \
		--vary layout.placement=contiguous,interleaved --vary layout.sync_interval=1,10,100,1000
	@echo; echo "The 2D step on 8 nodes of p5, in full"
	$(BIN)/foreshard predict mlperf-dcnv2-p5 --set layout.sharding_group_size=8 \
		--trace demo-out/timeline --plot demo-out/step.png
	@echo; echo "Written to demo-out: scaling.csv, scaling.png, step.png, timeline/*.json (open in ui.perfetto.dev)"

# How runs end is tested alone: its limits are seconds, on cores that nothing else takes.
ENDINGS := tests/calibration/launch/test_endings.py
test: $(VENV)/.test lint
	$(BIN)/python -m pytest $(ENDINGS) -p no:xdist -p no:benchmark
	$(BIN)/python -m pytest -n auto --dist loadscope -p no:benchmark --ignore $(ENDINGS) -rs

lint: $(VENV)/.test types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# mypy cannot follow setuptools' package-dir mapping of an editable install: give it a tree of links.
types: $(VENV)/.test
	@mkdir -p build/types/foreshard
	@for room in $(ROOMS); do ln -sfn ../../../$$room build/types/foreshard/$$room; done
	MYPYPATH=build/types $(BIN)/mypy -p foreshard.topologies -p foreshard.simulator

bench: $(VENV)/.test
	$(BIN)/python -m pytest tests/benchmarks -s -p no:xdist --benchmark-columns=min,median,max,rounds -o python_files='bench_*.py'

bench-gpu: $(VENV)/.test
	$(BIN)/python -m foreshard.kernels.bench

notebooks: $(VENV)/.test
	$(BIN)/python notebooks/refresh.py

accuracy: $(VENV)/.test
	$(BIN)/python -m pytest tests/verification -p no:benchmark -s -q -k accuracy

# Several nodes on this machine (root on Linux): what their links carry, or CMD run as every rank of them.
SHAPE ?= 2x2
RATE  ?= 500 Mbit/s
testbed: $(VENV)/.test
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/foreshard testbed --shape "$(SHAPE)" --rate "$(RATE)" -- $(CMD)

# TorchRec itself as the outside judge, in an environment of its own. Its metadata asks for the CUDA build of FBGEMM:
# --no-deps takes the CPU build, whose minor version is torch's less 5.
torchrec: $(TORCHREC)/.made
	$(TORCHREC)/bin/python -m pytest tests/calibration/judge

wheel: $(VENV)/.test
	$(BIN)/python -m build --wheel

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-out

# -- environments: made once, remade when pyproject.toml changes ---------------------------------------------

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("foreshard needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.demo

$(TORCHREC)/.made: pyproject.toml
	$(PYTHON) -m venv $(TORCHREC)
	$(TORCHREC)/bin/python -m pip install --quiet --upgrade pip
	$(TORCHREC)/bin/python -m pip install --quiet torch==2.13.0 tensordict torchmetrics==1.0.3 tqdm pyre-extensions \
		psutil pytest hypothesis
	$(TORCHREC)/bin/python -m pip install --quiet --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.9.2
	$(TORCHREC)/bin/python -m pip install --quiet --editable .
	@touch $@

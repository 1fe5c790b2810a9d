# Everything runs in .venv, which is made when it is first needed; Python 3.11+ and make are all it takes.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check bench clean

setup: .venv/made

.venv/made: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[serve,cluster,meds,export,baselines,dev]'
	@touch $@

demo: setup
	$(BIN)/seft prepare synthetic --out build/demo/synthetic --overwrite
	$(BIN)/seft inspect build/demo/synthetic --plot build/demo/synthetic.png
	rm -rf build/demo/run
	$(BIN)/seft train seft build/demo/synthetic --out build/demo/run --max-epochs 25
	$(BIN)/seft evaluate build/demo/run --out build/demo/report
	$(BIN)/seft explain build/demo/run --series s000007 --out build/demo/explained.png
	@echo "see build/demo: synthetic.png, explained.png, report/report.html"

test: setup
	$(BIN)/pytest --numprocesses auto --dist loadfile

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m benchmarks.data

clean:
	rm -rf .venv build dist
